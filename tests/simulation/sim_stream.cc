#include "tests/simulation/sim_stream.h"

#include "absl/strings/str_cat.h"
#include "common/wire_codec.h"

namespace weir {
namespace {

// How often a stream that takes no more is looked at again.
constexpr absl::Duration kFull = absl::Milliseconds(20);

class NoSegments final : public ClientSegments {
 public:
  absl::StatusOr<const char*> At(uint32_t segment, uint64_t, uint64_t) const override {
    return absl::NotFoundError(absl::StrCat("segment ", segment, " of a client that has given none"));
  }
};

}  // namespace

void SimLoop::Post(absl::AnyInvocable<void()> task) {
  if (stopped_) return;
  tasks_.push_back(std::move(task));
  world_->After(node_, world_->Between(absl::ZeroDuration(), absl::Microseconds(200)), [this] {
    absl::AnyInvocable<void()> first = std::move(tasks_.front());
    tasks_.pop_front();
    first();
  });
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
  return std::make_shared<NoSegments>();
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
  // Called from within this, and not once the session has ended.
  session_ = std::make_shared<ExchangeSession>(options, [this] {
    if (std::exchange(settling_, true)) return;
    site_->world.After(node_, absl::ZeroDuration(), [self = shared_from_this()] {
      self->settling_ = false;
      self->Settle();
    });
  });
}

void SimStream::Receive(const std::string& bytes) {
  if (session_ == nullptr) return;
  if (site_->seams.takes_views_back && IsTakenBack(bytes)) return;
  const auto owner = std::make_shared<const std::string>(bytes);
  const absl::Status status = session_->Receive({{*owner}, owner});
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

void SimStream::EndJob(const std::string& failure) {
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

void SimStream::Settle() {
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
  // What refers to shared memory takes a few bytes of the stream, weights in a message fill it.
  const bool bulk = !message_.payload.empty();
  if (bulk && connection_->full(Connection::kAcceptor)) return later(kFull, &SimStream::Write);
  absl::Duration wait = world.Between(absl::ZeroDuration(), absl::Microseconds(bulk ? 3000 : 50));
  // A congested stream takes its time.
  if (bulk && world.Chance(0.004)) wait = world.Between(absl::ZeroDuration(), absl::Seconds(2));
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
      if (reply.ParseFromString(bytes) && reply.has_shared()) ++self->chunks_shared_, ++self->chunks_held_;
    }
    self->connection_->Send(Connection::kAcceptor,
                            [receive = self->receive_, bytes = std::move(bytes)] { receive(bytes); });
    self->session_->Sent();
    self->Settle();
  });
}

void SimStream::TakeViewsBack() {
  if (chunks_held_ == 0) return;
  v1::ExchangeRequest request;
  request.set_released(static_cast<uint32_t>(std::exchange(chunks_held_, 0)));
  taken_back_ = chunks_shared_;
  const auto owner = std::make_shared<const std::string>(request.SerializeAsString());
  session_->Receive({{*owner}, owner}).IgnoreError();
}

bool SimStream::IsTakenBack(const std::string& bytes) {
  v1::ExchangeRequest request;
  // Each chunk by its number (ChunkInPlace).
  if (!request.ParseFromString(bytes) || request.released() == 0) return false;
  if (request.first() <= taken_back_) return true;
  --chunks_held_;
  return false;
}

}  // namespace weir
