#include "client/exchange/exchange_stream.h"

#include <algorithm>
#include <utility>

#include "absl/strings/str_cat.h"
#include "common/base/status_macros.h"

namespace weir {
namespace {

// How long the shard may take to send a segment that it has named, and how long to wait between two looks.
constexpr std::chrono::nanoseconds kSegmentLimit = std::chrono::seconds(5);
constexpr std::chrono::nanoseconds kFirstLook = std::chrono::microseconds(100),
                                   kLongestLook = std::chrono::milliseconds(10);

// DataLoss is what ShardExchange says when a pull was cut short after its push had taken effect, and its
// caller takes it for that. From a ring, a server or a shard it means that something was garbled.
absl::Status NotOfExchange(const absl::Status& status) {
  return absl::IsDataLoss(status) ? absl::InternalError(status.message()) : status;
}

}  // namespace

void ExchangeStream::Start(ShardChannel& channel, std::function<void()> gone) {
  const auto opened = std::make_shared<ShardChannel::Opened>();
  loop_.RunAside([self = shared_from_this(), &channel, gone = std::move(gone),
                  opened]() mutable { *opened = channel.Open(std::move(self), std::move(gone)); },
                 [self = shared_from_this(), opened] { self->OnOpened(std::move(*opened)); });
}

void ExchangeStream::OnOpened(ShardChannel::Opened opened) {
  MutexLock lock(mutex_);
  stream_ = std::move(opened.stream);
  memory_ = std::move(opened.memory);
  refused_ = std::move(opened.refused);
  greet_ = memory_ != nullptr;
  if (memory_ != nullptr) {
    weights_ = std::make_shared<SharedWeights>(memory_, [self = weak_from_this(), &loop = loop_] {
      loop.Post([self] {
        if (const auto stream = self.lock()) stream->Continue();
      });
    });
  }
  stream_->Read(/*relaxed=*/false);
  if (over_) stream_->Cancel();
  Write();
}

bool ExchangeStream::Add(std::shared_ptr<ShardExchange> exchange, Ended ended) {
  MutexLock lock(mutex_);
  if (over_) return false;
  exchange->Begin();
  open_.push_back({std::move(exchange), std::move(ended)});
  Write();
  return true;
}

void ExchangeStream::Abandon(const ShardExchange& exchange) {
  Open open;
  MutexLock lock(mutex_);
  const auto found =
      std::find_if(open_.begin(), open_.end(), [&](const Open& o) { return o.exchange.get() == &exchange; });
  if (found == open_.end()) return;
  open = std::move(*found);
  open_.erase(found);
  // Memory must not change for as long as the shard may read it.
  const bool read =
      (open.id != 0 && slots_owner_ == open.id) || (open.in_place && !open.exchange->push_answered());
  if (open.sending || open.exchange->loans().out() || read) Restart();
}

void ExchangeStream::Continue() {
  MutexLock lock(mutex_);
  Write();
}

void ExchangeStream::Reopen() {
  MutexLock lock(mutex_);
  Restart();
}

void ExchangeStream::Cancel() {
  MutexLock lock(mutex_);
  over_ = true;
  if (stream_ != nullptr) stream_->Cancel();
}

void ExchangeStream::Restart() {
  restarting_ = over_ = true;
  if (stream_ != nullptr) stream_->Cancel();
}

void ExchangeStream::Write() {
  while (stream_ != nullptr && !writing_ && !over_) {
    OutgoingMessage message;
    if (!NextMessage(&message)) return;
    writing_ = !stream_->Write(std::move(message));
  }
}

bool ExchangeStream::NextMessage(OutgoingMessage* message) {
  v1::ExchangeRequest head;
  if (std::exchange(greet_, false)) {
    head.mutable_shared_memory()->set_token(memory_->token());
    *message = {head.SerializeAsString(), {}};
    return true;
  }
  const SharedWeights::Released released =
      weights_ == nullptr ? SharedWeights::Released() : weights_->TakeReleased();
  head.set_released(released.count);
  if (released.first > 0) {
    head.set_first(released.first);
    *message = {head.SerializeAsString(), {}, /*relaxed=*/true};
    return true;
  }
  auto next = std::find_if(open_.begin(), open_.end(),
                           [](const Open& open) { return open.id == 0 && open.exchange->MayBegin(); });
  bool chunk = true;
  if (next != open_.end()) {
    chunk = (!next->exchange->pushes() ||
             std::none_of(open_.begin(), next,
                          [](const Open& open) { return open.sending && open.exchange->pushes(); })) &&
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
    // The shard asks for what it needs at once (v1.ExchangeRequest.released).
    *message = {head.SerializeAsString(), {}, /*relaxed=*/next == open_.end()};
  } else {
    *message = NextChunk(*next, std::move(head));
  }
  if (next != open_.end()) next->sending = next->exchange->sends();
  return true;
}

OutgoingMessage ExchangeStream::NextChunk(Open& open, v1::ExchangeRequest head) {
  if (shares_ && open.exchange->memory() != nullptr && !open.exchange->sends_rows()) {
    if (const std::optional<uint32_t> segment = memory_->NumberOf(open.exchange->memory())) {
      open.in_place = true;
      return open.exchange->MakeChunkInPlace(std::move(head), *segment);
    }
  }
  const uint64_t number = open.chunks++;
  if (shares_ && slots_owner_ == 0 && open.exchange->pushes()) slots_owner_ = open.id;
  if (!shares_ || slots_owner_ != open.id) return open.exchange->MakeChunk(std::move(head));
  // The shard takes chunks in order, and no more chunks wait for it than there are slots. So it has taken the
  // chunk that was in this slot.
  const uint32_t slot = static_cast<uint32_t>(number % memory_->slots());
  return open.exchange->MakeSharedChunk(std::move(head), memory_->SlotOffset(slot), memory_->SlotData(slot));
}

void ExchangeStream::OnWritten() {
  MutexLock lock(mutex_);
  writing_ = false;
  Write();
}

void ExchangeStream::OnMessage(IncomingMessage message) {
  Take(std::move(message), kFirstLook, kSegmentLimit);
}

void ExchangeStream::Take(IncomingMessage message, std::chrono::nanoseconds wait,
                          std::chrono::nanoseconds left) {
  absl::Status broken = TakeReply(message);
  if (absl::IsNotFound(broken) && left.count() > 0 && GoesOn()) {
    loop_.RunAfter(wait, [self = shared_from_this(), message = std::move(message), wait, left]() mutable {
      self->Take(std::move(message), std::min(2 * wait, kLongestLook), left - wait);
    });
    return;
  }
  if (absl::IsNotFound(broken)) broken = absl::UnavailableError(broken.message());
  message = {};
  MutexLock lock(mutex_);
  if (!broken.ok()) {
    broken_ = broken;
    over_ = true;
    stream_->Cancel();
  }
  // While no exchange is open, the thread that waited for this reply, and makes the next request, goes first.
  stream_->Read(/*relaxed=*/open_.empty() && !over_);
}

absl::Status ExchangeStream::TakeReply(const IncomingMessage& bytes) {
  absl::StatusOr<SplitMessage> message = SplitPayload(bytes.pieces);
  v1::ExchangeReply reply;
  if (!message.ok() || !reply.ParseFromString(message->head)) {
    return absl::InternalError("it sent a message that is not an ExchangeReply");
  }
  if (reply.has_shared_memory()) {
    if (memory_ == nullptr) return absl::InternalError("it granted shared memory that was not asked for");
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
  std::shared_ptr<ShardExchange> exchange;
  {
    MutexLock lock(mutex_);
    if (id == 0 || id > last_id_) {
      return absl::InternalError(
          absl::StrCat("it sent something for exchange ", id, ", which was never begun"));
    }
    const auto found = find();
    if (found == open_.end() || restarting_) {
      // The exchange was abandoned meanwhile, or will begin again.
      chunk.Done();
      Write();
      return absl::OkStatus();
    }
    exchange = found->exchange;
  }
  // Without the lock: exchanges may be added and sent while weights are written.
  absl::StatusOr<ShardExchange::Progress> taken =
      exchange->Take(std::move(reply), *message, shared ? &chunk : nullptr);
  if (shard_ended_it) taken = NotOfExchange(taken.status());
  Ended ended;
  {
    MutexLock lock(mutex_);
    const auto open = find();
    open->credit += credit;
    chunk.Done();
    if (exchange->push_answered()) {
      exchange->EndPush();
      open->sending = exchange->sends();
    }
    const bool over = !taken.ok() || *taken != ShardExchange::Progress::kOpen;
    // A shard that broke the protocol may wait for more of the exchange, and read what is in the slots.
    const bool unclear = !taken.ok() && !shard_ended_it &&
                         (open->sending || (slots_owner_ == id && !exchange->chunks_read()) ||
                          (open->in_place && !exchange->push_answered()));
    if (slots_owner_ == id && (over || exchange->chunks_read())) slots_owner_ = 0;
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

absl::Status ExchangeStream::FindShared(const v1::SharedRange& range, SplitMessage* message) {
  if (memory_ == nullptr) return absl::InternalError("it spoke of shared memory, which was not asked for");
  absl::StatusOr<const char*> data = memory_->Map(range.segment(), range.offset(), range.bytes());
  if (!data.ok()) {
    const std::string what = absl::StrCat("shared memory: ", data.status().message());
    if (absl::IsNotFound(data.status())) return absl::NotFoundError(what);
    // A shard that is gone before it handed the memory over has not broken the protocol.
    return absl::IsUnavailable(data.status()) ? absl::UnavailableError(what) : absl::InternalError(what);
  }
  message->payload = {absl::string_view(*data, range.bytes())};
  message->payload_bytes = range.bytes();
  return absl::OkStatus();
}

void ExchangeStream::OnEnd(const absl::Status& status) {
  absl::StatusOr<ShardExchange::Progress> how = ShardExchange::Progress::kAgain;
  std::list<Open> open;
  if (weights_ != nullptr) weights_->End();
  {
    MutexLock lock(mutex_);
    over_ = true;
    open.swap(open_);
    if (!broken_.ok()) {
      how = broken_;
    } else if (!restarting_) {
      how = status.ok() ? absl::UnavailableError("it ended the stream") : NotOfExchange(status);
    }
  }
  for (Open& exchange : open) exchange.ended(how);
}

}  // namespace weir
