#include "client/grpc_exchange_stream.h"

#include <algorithm>
#include <utility>

#include "absl/strings/str_cat.h"
#include "client/grpc_channel.h"
#include "common/grpc_payload.h"
#include "common/grpc_token.h"
#include "common/status_macros.h"

namespace weir {
namespace {

// How long a segment that the shard has named may take to come; it was sent before.
constexpr std::chrono::seconds kSegmentLimit{5};

}  // namespace

GrpcExchangeStream::GrpcExchangeStream(GrpcPoller& poller, MakeCaller caller, std::function<void()> gone)
    : poller_(poller), caller_(std::move(caller)), gone_(std::move(gone)) {}

void GrpcExchangeStream::Start(grpc::GenericStub& stub, const JobToken& token,
                               std::unique_ptr<SharedMemoryLink> link, std::function<void()> refused) {
  MutexLock lock(mutex_);
  self_ = shared_from_this();
  link_ = std::move(link);
  refused_ = std::move(refused);
  greet_ = link_ != nullptr;
  if (link_ != nullptr) {
    weights_ = std::make_shared<SharedWeights>(link_, [self = weak_from_this(), &poller = poller_] {
      poller.RunSoon([self] {
        if (const auto stream = self.lock()) stream->Continue();
      });
    });
  }
  // The call begins with the first message, on its way together with it.
  context_.set_initial_metadata_corked(true);
  SetToken(token, &context_);
  rpc_ = stub.PrepareCall(&context_, "/weir.v1.ParameterServer/Exchange", poller_.queue());
  rpc_->StartCall(nullptr);
  Read();
}

bool GrpcExchangeStream::Add(std::shared_ptr<GrpcExchange> exchange, Ended ended) {
  MutexLock lock(mutex_);
  if (over_) return false;
  exchange->Begin();
  open_.push_back({std::move(exchange), std::move(ended)});
  Write();
  return true;
}

void GrpcExchangeStream::Abandon(const GrpcExchange& exchange) {
  Open open;
  MutexLock lock(mutex_);
  const auto found =
      std::find_if(open_.begin(), open_.end(), [&](const Open& o) { return o.exchange.get() == &exchange; });
  if (found == open_.end()) return;
  open = std::move(*found);
  open_.erase(found);
  // What the shard may read must stay as it is for as long as it may.
  const bool read = slots_owner_ == open.id || (open.in_place && !open.exchange->push_answered());
  if (open.sending || open.exchange->loans().out() || read) Restart();
}

void GrpcExchangeStream::Continue() {
  MutexLock lock(mutex_);
  Write();
}

void GrpcExchangeStream::Reopen() {
  MutexLock lock(mutex_);
  Restart();
}

void GrpcExchangeStream::Cancel() {
  MutexLock lock(mutex_);
  over_ = true;
  context_.TryCancel();
}

void GrpcExchangeStream::Restart() {
  restarting_ = over_ = true;
  context_.TryCancel();
}

void GrpcExchangeStream::Read() {
  ++operations_;
  const auto read = [this] { rpc_->Read(&reply_, static_cast<GrpcPoller::Event*>(&read_)); };
  if (!open_.empty() || over_) return read();
  // It sends a window update, which need not hold up who has waited for this reply and has the next request.
  poller_.RunSoon([self = shared_from_this(), read] { read(); });
}

void GrpcExchangeStream::Write() {
  if (writing_ || over_) return;
  OutgoingMessage message;
  if (!NextMessage(&message)) return;
  writing_ = true;
  ++operations_;
  rpc_->Write(ToByteBuffer(std::move(message)), static_cast<GrpcPoller::Event*>(&written_));
}

bool GrpcExchangeStream::NextMessage(OutgoingMessage* message) {
  v1::ExchangeRequest head;
  if (std::exchange(greet_, false)) {
    head.mutable_shared_memory()->set_token(link_->token());
    *message = {head.SerializeAsString(), {}};
    return true;
  }
  const SharedWeights::Released released =
      weights_ == nullptr ? SharedWeights::Released() : weights_->TakeReleased();
  head.set_released(released.count);
  if (released.first > 0) {
    head.set_first(released.first);
    *message = {head.SerializeAsString(), {}};
    return true;
  }
  auto next = std::find_if(open_.begin(), open_.end(),
                           [](const Open& open) { return open.id == 0 && open.exchange->MayBegin(); });
  bool chunk = true;
  if (next != open_.end()) {
    chunk = std::none_of(open_.begin(), next, [](const Open& open) { return open.sending; }) &&
            next->exchange->FindChunk();
    next->id = ++last_id_;
    next->exchange->AddBeginning(caller_(), &head);
    // Another shard's chunk may have been found not to be finite meanwhile.
    chunk = chunk && next->exchange->sends();
  } else {
    next = std::find_if(open_.begin(), open_.end(), [](const Open& open) {
      return open.sending && open.credit > 0 && open.exchange->FindChunk();
    });
    if (next != open_.end()) --next->credit;
  }
  if (next == open_.end() && released.count == 0) return false;
  if (next != open_.end()) head.set_id(next->id);
  if (next == open_.end() || !chunk) {
    *message = {head.SerializeAsString(), {}};
  } else {
    *message = NextChunk(*next, std::move(head));
  }
  if (next != open_.end()) next->sending = next->exchange->sends();
  return true;
}

OutgoingMessage GrpcExchangeStream::NextChunk(Open& open, v1::ExchangeRequest head) {
  if (shares_ && open.exchange->memory() != nullptr) {
    if (const std::optional<uint32_t> segment = link_->NumberOf(open.exchange->memory())) {
      open.in_place = true;
      return open.exchange->MakeChunkInPlace(std::move(head), *segment);
    }
  }
  const uint64_t number = open.chunks++;
  if (shares_ && slots_owner_ == 0) slots_owner_ = open.id;
  if (!shares_ || slots_owner_ != open.id) return open.exchange->MakeChunk(std::move(head));
  // The shard takes chunks in order and has no more of them before it than there are slots: whatever was in
  // this one is done with.
  const uint32_t slot = static_cast<uint32_t>(number % link_->slots());
  return open.exchange->MakeSharedChunk(std::move(head), link_->SlotOffset(slot), link_->SlotData(slot));
}

void GrpcExchangeStream::Handle(Event::Handler handler, bool ok) {
  (this->*handler)(ok);
  std::shared_ptr<GrpcExchangeStream> last;
  std::function<void()> gone;
  {
    MutexLock lock(mutex_);
    if (--operations_ > 0) return;
    last = std::move(self_);
    gone = gone_;
  }
  // Whoever waits for `gone` may destroy the channel, which this may be the last to hold.
  last = nullptr;
  gone();
}

void GrpcExchangeStream::OnWritten(bool ok) {
  MutexLock lock(mutex_);
  writing_ = false;
  // Not ok: the stream has ended; OnRead() tells.
  if (ok) Write();
}

void GrpcExchangeStream::OnRead(bool ok) {
  const absl::Status broken = ok ? TakeReply() : absl::OkStatus();
  reply_.Clear();
  MutexLock lock(mutex_);
  if (!broken.ok()) {
    broken_ = broken;
    over_ = true;
    context_.TryCancel();
  }
  if (ok) {
    Read();
  } else {
    over_ = true;
    ++operations_;
    rpc_->Finish(&status_, static_cast<GrpcPoller::Event*>(&finished_));
  }
}

absl::Status GrpcExchangeStream::TakeReply() {
  WEIR_ASSIGN_OR_RETURN(const IncomingMessage bytes, ToIncoming(reply_));
  absl::StatusOr<SplitMessage> message = SplitPayload(bytes.pieces);
  v1::ExchangeReply reply;
  if (!message.ok() || !reply.ParseFromString(message->head)) {
    return absl::InternalError("it sent what is not an ExchangeReply");
  }
  if (reply.has_shared_memory()) {
    if (link_ == nullptr) return absl::InternalError("it granted shared memory that was not asked for");
    if (!reply.shared_memory().granted()) {
      refused_();
      return absl::OkStatus();
    }
    MutexLock lock(mutex_);
    shares_ = true;
    return absl::OkStatus();
  }
  const bool shared = reply.has_shared();
  SharedWeights::Chunk chunk;
  if (shared) {
    WEIR_RETURN_IF_ERROR(FindShared(reply.shared(), &*message));
    chunk = weights_->Receive();
  }
  const uint64_t id = reply.id(), credit = reply.credit();
  const bool shard_ended_it = reply.has_error();
  const auto find = [this, id]() ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_) {
    return std::find_if(open_.begin(), open_.end(),
                        [id](const Open& open) { return open.id == id && id != 0; });
  };
  std::shared_ptr<GrpcExchange> exchange;
  {
    MutexLock lock(mutex_);
    if (id == 0 || id > last_id_) {
      return absl::InternalError(
          absl::StrCat("it sent something for exchange ", id, ", which was never begun"));
    }
    const auto found = find();
    if (found == open_.end() || restarting_) {
      // Abandoned meanwhile, or to begin again.
      chunk.Done();
      Write();
      return absl::OkStatus();
    }
    exchange = found->exchange;
  }
  // Without the lock: exchanges may be added and sent while weights are written.
  const absl::StatusOr<GrpcExchange::Progress> taken =
      exchange->Take(std::move(reply), *message, shared ? &chunk : nullptr);
  Ended ended;
  {
    MutexLock lock(mutex_);
    const auto open = find();
    open->credit += credit;
    chunk.Done();
    if (exchange->push_answered()) open->sending = false;
    const bool over = !taken.ok() || *taken != GrpcExchange::Progress::kOpen;
    // By what it has broken, the shard may wait for more of it, and read what is in the slots.
    const bool unclear =
        !taken.ok() && !shard_ended_it &&
        (open->sending || ((slots_owner_ == id || open->in_place) && !exchange->push_answered()));
    if (slots_owner_ == id && (over || exchange->push_answered())) slots_owner_ = 0;
    if (over) {
      ended = std::move(open->ended);
      if (unclear) Restart();
      open_.erase(open);
    }
    Write();
  }
  if (ended) ended(taken);
  return absl::OkStatus();
}

absl::Status GrpcExchangeStream::FindShared(const v1::SharedRange& range, SplitMessage* message) {
  if (link_ == nullptr) return absl::InternalError("it spoke of shared memory, which was not asked for");
  const auto soon = std::chrono::steady_clock::now() + kSegmentLimit;
  absl::StatusOr<const char*> data = link_->Map(range.segment(), range.offset(), range.bytes(), soon);
  if (!data.ok()) return absl::InternalError(absl::StrCat("of shared memory: ", data.status().message()));
  message->payload = {absl::string_view(*data, range.bytes())};
  message->payload_bytes = range.bytes();
  return absl::OkStatus();
}

void GrpcExchangeStream::OnFinished(bool /*ok*/) {
  absl::StatusOr<GrpcExchange::Progress> how = GrpcExchange::Progress::kAgain;
  std::list<Open> open;
  if (weights_ != nullptr) weights_->End();
  {
    MutexLock lock(mutex_);
    open.swap(open_);
    if (!broken_.ok()) {
      how = broken_;
    } else if (!restarting_) {
      how = status_.ok() ? absl::UnavailableError("it ended the stream") : FromGrpc(status_);
    }
  }
  for (Open& exchange : open) exchange.ended(how);
}

}  // namespace weir
