#include "tests/simulation/sim_stream.h"

#include "absl/strings/str_cat.h"
#include "common/codec/wire_codec.h"

namespace weir {
namespace {

// The interval at which a full stream is tried again.
constexpr absl::Duration kFull = absl::Milliseconds(20);
// How long a congested stream takes for a message at most, and how often that happens in one run.
constexpr absl::Duration kCongested = absl::Seconds(2);
constexpr uint64_t kMostCongested = 8;

}  // namespace

void SimLoop::Post(absl::AnyInvocable<void()> task) {
  if (stopped_) return;
  tasks_.push_back(std::move(task));
  world_->After(node_, world_->Between(absl::ZeroDuration(), absl::Microseconds(200)), [this] {
    // Drain() has run them already.
    if (tasks_.empty()) return;
    absl::AnyInvocable<void()> first = std::move(tasks_.front());
    tasks_.pop_front();
    first();
  });
}

void SimLoop::Drain() {
  while (!tasks_.empty()) {
    absl::AnyInvocable<void()> first = std::move(tasks_.front());
    tasks_.pop_front();
    first();
  }
}

void SimLoop::Stop() {
  stopped_ = true;
  tasks_.clear();
}

void SimSharedMemory::DropClosed() {
  for (auto it = clients_.begin(); it != clients_.end();) {
    it = it->second.socket.expired() ? clients_.erase(it) : std::next(it);
  }
}

std::shared_ptr<const ClientSegments> SimSharedMemory::Claim(absl::string_view token) const {
  const auto it = clients_.find(token);
  if (it == clients_.end() || it->second.socket.expired()) return nullptr;
  return it->second.segments;
}

void SimSharedMemory::KeepFor(absl::string_view token, std::vector<std::shared_ptr<const void>> memory) {
  const auto it = clients_.find(token);
  if (it == clients_.end() || it->second.socket.expired()) return;
  for (auto& piece : memory) it->second.kept.push_back(std::move(piece));
}

SimStream::SimStream(Site* site, World::Node node, const ExchangeSession::Options& options,
                     std::shared_ptr<Connection> connection, std::function<void(std::string)> receive,
                     std::function<void(const v1::Caller&)> on_broken)
    : site_(site),
      node_(node),
      connection_(std::move(connection)),
      receive_(std::move(receive)),
      on_broken_(std::move(on_broken)) {
  // Called from within the session, and not once the session has ended.
  session_ = std::make_shared<ExchangeSession>(options, [this] {
    if (std::exchange(settling_, true)) return;
    site_->world.After(node_, absl::ZeroDuration(), [self = shared_from_this()] {
      self->settling_ = false;
      self->StartOperations();
    });
  });
}

void SimStream::Receive(const std::string& bytes) {
  if (session_ == nullptr) return;
  std::string message = site_->seams.takes_views_back ? WithoutTakenBack(bytes) : bytes;
  if (message.empty()) return;
  const absl::Status status = session_->Receive(ToIncoming(std::move(message)));
  if (status.ok()) return;
  site_->log.complaints.push_back(absl::StrCat("a client broke the protocol: ", status.ToString()));
  End(status);
}

bool SimStream::DropRevoked() {
  if (session_ == nullptr) return false;
  if (site_->seams.takes_views_back) TakeViewsBack();
  if (!session_->DropRevoked()) return false;
  End(absl::CancelledError("its client does not read"));
  return true;
}

void SimStream::EndJob(const absl::Status& failure) {
  if (session_ != nullptr) session_->EndJob(failure);
}

void SimStream::OnBroken() {
  if (session_ == nullptr) return;
  const std::shared_ptr<ExchangeSession> session = Drop();
  const std::optional<v1::Caller> caller = session->caller();
  session->End();
  if (caller.has_value()) on_broken_(*caller);
}

void SimStream::End(const absl::Status& why) {
  connection_->Close(Connection::kAcceptor, why);
  Drop()->End();
}

std::shared_ptr<ExchangeSession> SimStream::Drop() {
  message_ = {};
  return std::exchange(session_, nullptr);
}

void SimStream::StartOperations() {
  if (session_ == nullptr || writing_ || !session_->Send(&message_)) return;
  writing_ = true;
  Write();
}

void SimStream::Write() {
  World& world = site_->world;
  const auto later = [&](absl::Duration wait, void (SimStream::*then)()) {
    world.After(node_, wait, [self = shared_from_this(), then] { (self.get()->*then)(); });
  };
  if (session_ == nullptr) return;
  // A reference to shared memory takes a few bytes of the stream; weights in a message fill it.
  const bool bulk = !message_.payload.empty();
  if (bulk && connection_->full(Connection::kAcceptor)) return later(kFull, &SimStream::Write);
  absl::Duration wait = world.Between(absl::ZeroDuration(), absl::Microseconds(bulk ? 3000 : 50));
  if (bulk) {
    // A congested stream is slow. All such waits of a run together take less time than a job has to make
    // progress.
    uint64_t& congested = site_->faults["stream congested"];
    if (congested < kMostCongested && world.Chance(0.004)) {
      ++congested;
      wait = world.Between(absl::ZeroDuration(), kCongested);
    }
  }
  world.After(node_, wait, [self = shared_from_this()] {
    if (self->session_ == nullptr) return;
    std::string bytes = std::move(self->message_.head);
    for (const OutgoingMessage::Piece& piece : self->message_.payload) {
      bytes.append(piece.bytes.data(), piece.bytes.size());
    }
    self->message_ = {};
    self->writing_ = false;
    if (self->site_->seams.takes_views_back) {
      v1::ExchangeReply reply;
      if (reply.ParseFromString(bytes) && reply.has_shared()) self->held_.insert(++self->chunks_shared_);
    }
    self->connection_->Send(Connection::kAcceptor,
                            [receive = self->receive_, bytes = std::move(bytes)] { receive(bytes); });
    self->session_->Sent();
    self->StartOperations();
  });
}

void SimStream::TakeViewsBack() {
  const auto kept = std::distance(held_.upper_bound(taken_back_), held_.end());
  if (kept == 0) return;
  v1::ExchangeRequest request;
  request.set_released(static_cast<uint32_t>(kept));
  taken_back_ = chunks_shared_;
  session_->Receive(ToIncoming(request.SerializeAsString())).IgnoreError();
}

std::string SimStream::WithoutTakenBack(const std::string& bytes) {
  const absl::string_view piece = bytes;
  const auto message = SplitPayload(absl::MakeConstSpan(&piece, 1));
  v1::ExchangeRequest request;
  if (!message.ok() || !request.ParseFromString(message->head) || request.released() == 0) return bytes;
  // The oldest chunks, or those from a number on (proto/parameter_server.proto).
  const bool alone = request.id() == 0, counted = alone && request.first() > 0;
  auto from = counted ? held_.find(request.first()) : held_.begin();
  uint32_t left = 0;
  for (uint32_t i = 0; i < request.released() && from != held_.end(); ++i) {
    if (*from > taken_back_) ++left;
    from = held_.erase(from);
  }
  if (left == request.released()) return bytes;
  request.set_released(left);
  std::string changed;
  if (left == 0 && alone) return changed;
  changed = request.SerializeAsString();
  absl::StrAppend(&changed, PayloadPrefix(message->payload_bytes));
  for (absl::string_view part : message->payload) absl::StrAppend(&changed, part);
  return changed;
}

}  // namespace weir
