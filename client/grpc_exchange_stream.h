#pragma once

#include <cstdint>
#include <functional>
#include <list>
#include <memory>
#include <string>

#include "absl/status/status.h"
#include "client/grpc_exchange.h"
#include "client/grpc_poller.h"
#include "client/shared_memory_link.h"
#include "client/shared_weights.h"
#include "common/job_token.h"
#include "common/mutex.h"
#include "grpcpp/generic/generic_stub.h"
#include "grpcpp/grpcpp.h"

namespace weir {

// One long-lived ParameterServer.Exchange stream, with many exchanges open on it at once.
//
// With a link, the stream asks for shared memory first; once that is granted, chunks lie there, those of
// pulls and of one push at a time, and messages only say where.
//
// First messages go at once, in the order of Add(). Of a push's chunks the first goes with them if it may
// leave, unless another push is being sent; then the oldest push sends that has credit and a chunk that may
// leave. Replies are taken, and exchanges
// end, on the polling thread.
//
// Thread-safe. Held by shared_ptr, and by itself while an operation is under way.
class GrpcExchangeStream : public std::enable_shared_from_this<GrpcExchangeStream> {
 public:
  // How an exchange ended: what the shard answered, an error of the exchange (client/grpc_exchange.h), or the
  // stream's.
  using Ended = std::function<void(const absl::StatusOr<GrpcExchange::Progress>&)>;
  using MakeCaller = std::function<v1::Caller()>;

  // The stub must outlive Add(), `poller` the stream, and `gone` runs when its last operation has ended.
  GrpcExchangeStream(GrpcPoller& poller, MakeCaller caller, std::function<void()> gone);

  // Once, before all else. `link` has a slot for each of the chunks that the shard lets be on their way at
  // once; null: none. `refused` runs if the shard does not grant shared memory.
  void Start(grpc::GenericStub& stub, const JobToken& token, std::unique_ptr<SharedMemoryLink> link,
             std::function<void()> refused);

  // Begins an exchange, which stays on the stream until `ended` has been called, once and without locks, or
  // Abandon() returned. False: this stream is over, and nothing was done.
  bool Add(std::shared_ptr<GrpcExchange> exchange, Ended ended);

  // On the polling thread: forgets an exchange, whose tensors are not touched any more, except by gRPC as
  // GrpcExchange::loans() tells. Ends the stream if the shard would wait for more of it; the other exchanges
  // are told to begin again.
  void Abandon(const GrpcExchange& exchange);

  // A chunk that could not leave may now be able to.
  void Continue();

  // Ends the stream, whose exchanges are told to begin again: whatever it brings from now on does not count.
  void Reopen();

  // Ends the stream.
  void Cancel();

 private:
  struct Open {
    std::shared_ptr<GrpcExchange> exchange;
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
  struct Event final : GrpcPoller::Event {
    using Handler = void (GrpcExchangeStream::*)(bool ok);
    Event(GrpcExchangeStream& stream, Handler handler) : stream(stream), handler(handler) {}
    void OnEvent(bool ok) override { stream.Handle(handler, ok); }
    GrpcExchangeStream& stream;
    const Handler handler;
  };

  void Handle(Event::Handler handler, bool ok);
  void OnWritten(bool ok);
  void OnRead(bool ok);
  void OnFinished(bool ok);
  // An error: the stream makes no sense any more.
  absl::Status TakeReply();
  // The same.
  void Restart() ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  void Read() ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  // Writes what is next, unless a write is under way.
  void Write() ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  // What is next. False: nothing.
  bool NextMessage(OutgoingMessage* message) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  OutgoingMessage NextChunk(Open& open, v1::ExchangeRequest head) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  // Finds the chunk of a reply where it lies in shared memory.
  absl::Status FindShared(const v1::SharedRange& range, SplitMessage* message);

  GrpcPoller& poller_;
  const MakeCaller caller_;
  const std::function<void()> gone_;
  // Slots: under the lock; segments: on the polling thread. Null: no shared memory. Set by Start().
  std::shared_ptr<SharedMemoryLink> link_;
  // With the link.
  std::shared_ptr<SharedWeights> weights_;
  std::function<void()> refused_;

  Event written_{*this, &GrpcExchangeStream::OnWritten};
  Event read_{*this, &GrpcExchangeStream::OnRead};
  Event finished_{*this, &GrpcExchangeStream::OnFinished};

  Mutex mutex_;
  grpc::ClientContext context_;
  std::unique_ptr<grpc::GenericClientAsyncReaderWriter> rpc_;
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
  int operations_ ABSL_GUARDED_BY(mutex_) = 0;

  // Of the operations under way.
  std::shared_ptr<GrpcExchangeStream> self_ ABSL_GUARDED_BY(mutex_);
  grpc::ByteBuffer reply_;
  grpc::Status status_;
};

}  // namespace weir
