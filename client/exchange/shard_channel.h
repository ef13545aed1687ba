#pragma once

#include <chrono>
#include <cstdint>
#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <utility>

#include "absl/functional/any_invocable.h"
#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "common/protocol/message.h"
#include "common/system/clock.h"
#include "common/system/shared_memory.h"
#include "common/threads/future.h"
#include "common/threads/serial_queue.h"

namespace weir {

// Exchanges of a client are built on an event loop and on the channel to a shard. client/grpc has both over
// gRPC; the simulation has its own.

// The thread that runs a client's exchanges, with its tasks, timers, clocks and random numbers. A simulation
// has its own.
//
// Thread-safe. Outlives everything that uses it.
class EventLoop : public Executor {
 public:
  // When the timer is due, by steady_clock, and a number that makes it unique.
  using Timer = std::pair<std::chrono::steady_clock::time_point, uint64_t>;

  // Runs `then` on the loop when `wait` has passed, or soon after.
  virtual Timer RunAfter(std::chrono::nanoseconds wait, absl::AnyInvocable<void()> then) = 0;
  // Runs `work`, which may wait for other processes for a second or so, and then `then` on the loop, which
  // continues meanwhile. In a simulation nothing waits, and both run within this call.
  virtual void RunAside(absl::AnyInvocable<void()> work, absl::AnyInvocable<void()> then) {
    work();
    then();
  }
  // The timer's task will not run, unless it has begun or has run already.
  virtual void Cancel(const Timer& timer) = 0;

  // Lets a thread that waits for a result of the loop serve the loop meanwhile. nullptr: the thread sleeps.
  virtual std::shared_ptr<ResultDriver> driver() { return nullptr; }

  // As in common/system/clock.h.
  virtual const Clock& awake() const { return Clock::Awake(); }
  virtual const Clock& real() const { return Clock::Real(); }
  // Uniform in 32 bits.
  virtual uint32_t Random() = 0;

 protected:
  ~EventLoop() = default;
};

// Memory that a client and a shard share beside one data stream. Thread-safe, except for the contents of the
// slots.
class ShardMemory {
 public:
  virtual ~ShardMemory() = default;

  // For v1.SharedMemoryRequest.
  virtual std::string token() const = 0;

  // The client's slots for chunks of gradients. The user keeps track of the slots that the shard still reads.
  virtual uint32_t slots() const = 0;
  virtual char* SlotData(uint32_t slot) = 0;
  // For v1.SharedRange.
  virtual uint64_t SlotOffset(uint32_t slot) const = 0;

  // The number of this segment, which lets the shard be told to read there. nullopt: the shard does not have
  // the segment yet, or takes no more; the first call asks the shard to take it. Never waits.
  virtual std::optional<uint32_t> NumberOf(const std::shared_ptr<const SharedSegment>& gradients) = 0;

  // Maps weights at a place that the shard named; they stay mapped as long as this object exists. Never
  // waits. NotFound: no such segment has come yet. OutOfRange: the place is not within the segment.
  // Unavailable: the shard is gone.
  virtual absl::StatusOr<const char*> Map(uint32_t segment, uint64_t offset, uint64_t bytes) = 0;
};

// One data stream (ParameterServer.Exchange), as its client has it. Messages arrive whole and in order, or
// the stream ends. Thread-safe.
class DataStream {
 public:
  // The user of a stream. The stream calls it from one task of the event loop at a time, and not within calls
  // of the stream.
  class User {
   public:
    virtual ~User() = default;
    // The channel has the message for which Write() returned false, and the next one may be written.
    virtual void OnWritten() = 0;
    virtual void OnMessage(IncomingMessage message) = 0;
    // The last call. OK: the shard has ended the stream.
    virtual void OnEnd(const absl::Status& status) = 0;
  };

  virtual ~DataStream() = default;
  // One message at a time. True: the channel has the message, and the next one may be written. False:
  // OnWritten() will say so.
  virtual bool Write(OutgoingMessage message) = 0;
  // Asks for the next message, or for the end. The first of all calls; then once after each OnMessage(),
  // within it or soon after. `relaxed`: the user waits for nothing, so that other work may go first.
  virtual void Read(bool relaxed) = 0;
  // Ends the stream, and drops what is on its way.
  virtual void Cancel() = 0;
};

// Opens data streams to one shard. Thread-safe.
class ShardChannel {
 public:
  virtual ~ShardChannel() = default;

  // "ps:1 at 10.0.0.1:2222".
  virtual std::string name() const = 0;

  // Called once, before all streams: waits until the shard can be reached. If `otherwise` is not empty and
  // the shard has not moved, the channel also looks for the shard at that address, and stays there if the
  // shard is there. Unavailable: the shard cannot be reached before `deadline`. FailedPrecondition: the shard
  // cannot be reached in the way that the job's config asks for. An error of `alive`, which the channel asks
  // several times a second, ends the wait, too, and is returned.
  virtual absl::Status Connect(std::chrono::steady_clock::time_point deadline, const std::string& otherwise,
                               const std::function<absl::Status()>& alive) = 0;

  // The shard is at this address from now on; empty: at its first address. False: the channel uses that
  // address already.
  virtual bool MoveTo(const std::string& address) = 0;

  struct Opened {
    std::shared_ptr<DataStream> stream;
    // Memory that the client asks the shard, on the stream, to use. Null: there is none.
    std::shared_ptr<ShardMemory> memory;
    // Called by the client if the shard refuses the memory.
    std::function<void()> refused;
  };
  // Opens a stream to the shard's current address. If no shard is there, the stream ends with an error. The
  // stream holds `user`, and `gone` runs once when the stream has released it, after OnEnd().
  virtual Opened Open(std::shared_ptr<DataStream::User> user, std::function<void()> gone) = 0;
};

}  // namespace weir
