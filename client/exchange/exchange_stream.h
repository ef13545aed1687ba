#pragma once

#include <cstdint>
#include <functional>
#include <list>
#include <memory>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "client/exchange/event_loop.h"
#include "client/exchange/shard_channel.h"
#include "client/exchange/shard_exchange.h"
#include "client/exchange/shared_weights.h"
#include "common/codec/wire_codec.h"
#include "common/sync/mutex.h"
#include "proto/parameter_server.pb.h"

namespace weir {

// One long-lived data stream to a shard, with many exchanges open on it at once.
//
// Where there is memory to share, the stream asks for that first; once it is granted, chunks lie there, those
// of pulls and of one push at a time, and messages only say where.
//
// First messages go at once, in the order of Add(). Of a push's chunks the first goes with them if it may
// leave, unless another push is being sent; then the oldest push sends that has credit and a chunk that may
// leave. Replies are taken, and exchanges end, on the event loop.
//
// Thread-safe. Held by shared_ptr, and by its channel until the stream has ended.
class ExchangeStream final : public DataStream::User, public std::enable_shared_from_this<ExchangeStream> {
 public:
  // How an exchange ended: what the shard answered, an error of the exchange, or the stream's.
  using Ended = std::function<void(const absl::StatusOr<ShardExchange::Progress>&)>;
  using MakeCaller = std::function<v1::Caller()>;

  // The loop outlives this.
  ExchangeStream(EventLoop& loop, MakeCaller caller) : loop_(loop), caller_(std::move(caller)) {}

  // Once, before all else: opens the stream. `gone`: as ShardChannel::Open() has it. Memory that is shared
  // has a slot for each of the chunks that the shard lets be on their way at once.
  void Start(ShardChannel& channel, std::function<void()> gone);

  // Begins an exchange, which stays on the stream until `ended` has been called, once and without locks, or
  // Abandon() returned. False: this stream is over, and nothing was done.
  bool Add(std::shared_ptr<ShardExchange> exchange, Ended ended);

  // On the event loop: forgets an exchange, whose tensors are not touched any more, except by the channel as
  // ShardExchange::loans() tells. Ends the stream if the shard would wait for more of it; the other exchanges
  // are told to begin again.
  void Abandon(const ShardExchange& exchange);

  // A chunk that could not leave may now be able to.
  void Continue();

  // Ends the stream, whose exchanges are told to begin again: whatever it brings from now on does not count.
  void Reopen();

  // Ends the stream.
  void Cancel();

  void OnWritten() override;
  void OnMessage(IncomingMessage message) override;
  void OnEnd(const absl::Status& status) override;

 private:
  struct Open {
    std::shared_ptr<ShardExchange> exchange;
    Ended ended;
    // 0: its first message has not been made.
    uint64_t id = 0;
    // The shard waits for more of its push, and is ready for so many chunks.
    bool sending = false;
    uint64_t credit = 0;
    // Chunks that were sent.
    uint64_t chunks = 0;
    // Some of them where the caller has them.
    bool in_place = false;
  };
  // An error: the stream makes no sense any more.
  absl::Status TakeReply(const IncomingMessage& bytes);
  // As Reopen().
  void Restart() ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  // Writes what is next, unless a write is under way.
  void Write() ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  // What is next. False: nothing.
  bool NextMessage(OutgoingMessage* message) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  OutgoingMessage NextChunk(Open& open, v1::ExchangeRequest head) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  // Finds the chunk of a reply where it lies in shared memory.
  absl::Status FindShared(const v1::SharedRange& range, SplitMessage* message);

  EventLoop& loop_;
  const MakeCaller caller_;

  Mutex mutex_;
  // Set by Start(), with what follows.
  std::shared_ptr<DataStream> stream_;
  // Slots: under the lock; segments: on the event loop. Null: no shared memory.
  std::shared_ptr<ShardMemory> memory_;
  // With the memory.
  std::shared_ptr<SharedWeights> weights_;
  std::function<void()> refused_;

  // Oldest first.
  std::list<Open> open_ ABSL_GUARDED_BY(mutex_);
  uint64_t last_id_ ABSL_GUARDED_BY(mutex_) = 0;
  bool writing_ ABSL_GUARDED_BY(mutex_) = false;
  // Shared memory: to be asked for; granted; the push whose chunks are in the slots, 0: none.
  bool greet_ ABSL_GUARDED_BY(mutex_) = false;
  bool shares_ ABSL_GUARDED_BY(mutex_) = false;
  uint64_t slots_owner_ ABSL_GUARDED_BY(mutex_) = 0;
  // Nothing is taken on or sent any more.
  bool over_ ABSL_GUARDED_BY(mutex_) = false;
  // Ended by this end, with what was on its way; the exchanges that are open are to begin again.
  bool restarting_ ABSL_GUARDED_BY(mutex_) = false;
  // What the shard did to end it so.
  absl::Status broken_ ABSL_GUARDED_BY(mutex_);
};

}  // namespace weir
