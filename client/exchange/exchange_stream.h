#pragma once

#include <chrono>
#include <cstdint>
#include <functional>
#include <list>
#include <memory>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "client/exchange/shard_channel.h"
#include "client/exchange/shard_exchange.h"
#include "client/exchange/shared_weights.h"
#include "common/codec/wire_codec.h"
#include "common/threads/mutex.h"
#include "proto/parameter_server.pb.h"

namespace weir {

// One long-lived data stream to a shard, with many exchanges open on it at once.
//
// If there is memory to share, the stream first asks the shard for its use. Once the shard has granted it,
// the chunks of pulls, and of one push at a time, lie in that memory, and messages only say where. The keys
// of a pull travel in messages: a pull may wait long for its answer, and its keys would hold the slots
// meanwhile.
//
// The first messages of exchanges go at once, in the order of Add(). A push's first chunk goes with the first
// message if the chunk may leave and no other push is being sent; a pull's first keys always do. Further
// chunks come from the oldest exchange that has credit and a chunk that may leave. Replies are taken, and
// exchanges end, on the event loop.
//
// Thread-safe. Held by shared_ptr, and by its channel until the stream has ended.
class ExchangeStream final : public DataStream::User, public std::enable_shared_from_this<ExchangeStream> {
 public:
  // How an exchange ended: the shard's answer, or an error of the exchange or of the stream.
  using Ended = std::function<void(const absl::StatusOr<ShardExchange::Progress>&)>;
  using MakeCaller = std::function<v1::Caller()>;

  // The loop outlives this.
  ExchangeStream(EventLoop& loop, MakeCaller caller) : loop_(loop), caller_(std::move(caller)) {}

  // Opens the stream, aside (EventLoop::RunAside). Called once, before all else. `gone`: as in
  // ShardChannel::Open(); the channel outlives it. Shared memory has one slot for each chunk that the shard
  // allows to be on its way.
  void Start(ShardChannel& channel, std::function<void()> gone);

  // Begins an exchange. It stays on the stream until `ended` has been called, once and without locks, or
  // Abandon() has returned. False: this stream is over, and nothing was done.
  bool Add(std::shared_ptr<ShardExchange> exchange, Ended ended);

  // On the event loop: forgets an exchange. Its tensors are not touched any more, except by the channel while
  // the exchange's loans() are out. Ends the stream if the shard would wait for more of the exchange; the
  // other exchanges then end with kAgain.
  void Abandon(const ShardExchange& exchange);

  // Called when a chunk that could not leave may be able to leave now.
  void Continue();

  // Ends the stream, and its exchanges with kAgain. Whatever the stream brings from now on does not count.
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
    // 0: the first message has not been made.
    uint64_t id = 0;
    // Whether the shard waits for more chunks, and for how many it is ready.
    bool sending = false;
    uint64_t credit = 0;
    // Chunks that were sent.
    uint64_t chunks = 0;
    // Some of these chunks lie in the caller's memory.
    bool in_place = false;
  };
  void OnOpened(ShardChannel::Opened opened);
  // Takes a message, once the segment of shared memory that it names is there. Looks for the segment again
  // after `wait`, and then less and less often, as long as the shard may take to send the segment. Meanwhile
  // no other message is read, and the loop serves others.
  void Take(IncomingMessage message, std::chrono::nanoseconds wait, std::chrono::nanoseconds left);
  // An error means that the stream cannot continue; NotFound, that the message cannot be taken yet.
  absl::Status TakeReply(const IncomingMessage& bytes);
  // Whether the stream still matters to its user.
  bool GoesOn() {
    MutexLock lock(mutex_);
    return !over_;
  }
  // Does what Reopen() does.
  void Restart() ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  // Writes messages until there are none or one is under way.
  void Write() ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  // Makes the next message. False: there is none.
  bool NextMessage(OutgoingMessage* message) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  OutgoingMessage NextChunk(Open& open, v1::ExchangeRequest head) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  // Finds the chunk of a reply where it lies in shared memory. NotFound: its segment has not come yet.
  absl::Status FindShared(const v1::SharedRange& range, SplitMessage* message);

  EventLoop& loop_;
  const MakeCaller caller_;

  Mutex mutex_;
  // OnOpened() sets this and the next three members, before the stream brings anything. Null before.
  std::shared_ptr<DataStream> stream_;
  // Its slots are used under the lock, its segments on the event loop. Null: there is no shared memory.
  std::shared_ptr<ShardMemory> memory_;
  // Null: there is no shared memory.
  std::shared_ptr<SharedWeights> weights_;
  std::function<void()> refused_;

  // Oldest first.
  std::list<Open> open_ ABSL_GUARDED_BY(mutex_);
  uint64_t last_id_ ABSL_GUARDED_BY(mutex_) = 0;
  bool writing_ ABSL_GUARDED_BY(mutex_) = false;
  // Shared memory: still to be asked for; granted; the push whose chunks are in the slots (0: none).
  bool greet_ ABSL_GUARDED_BY(mutex_) = false;
  bool shares_ ABSL_GUARDED_BY(mutex_) = false;
  uint64_t slots_owner_ ABSL_GUARDED_BY(mutex_) = 0;
  // No exchange is taken on, and nothing is sent, any more.
  bool over_ ABSL_GUARDED_BY(mutex_) = false;
  // This side ended the stream; its open exchanges will begin again.
  bool restarting_ ABSL_GUARDED_BY(mutex_) = false;
  // Why this side gave the stream up: the shard broke the protocol, or is gone. OK: neither.
  absl::Status broken_ ABSL_GUARDED_BY(mutex_);
};

}  // namespace weir
