#pragma once

#include <chrono>
#include <cstdint>
#include <functional>
#include <memory>
#include <optional>
#include <string>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "common/protocol/message.h"
#include "common/system/shared_memory.h"

namespace weir {

// What the exchanges of a client need of the way to a shard. gRPC's is client/grpc/grpc_shard_channel.h; the
// simulation has its own.

// Memory that a client and a shard share beside one data stream. Thread-safe, but for the contents of the
// slots.
class ShardMemory {
 public:
  virtual ~ShardMemory() = default;

  // For v1.SharedMemoryRequest.
  virtual std::string token() const = 0;

  // Slots of the client for chunks of gradients; which of them the shard still reads is for the user to know.
  virtual uint32_t slots() const = 0;
  virtual char* SlotData(uint32_t slot) = 0;
  // For v1.SharedRange.
  virtual uint64_t SlotOffset(uint32_t slot) const = 0;

  // The number of this segment, which the shard may be told from now on to read there. Nothing: not yet, or
  // the shard takes no more; asks it to, once. Never waits.
  virtual std::optional<uint32_t> NumberOf(const std::shared_ptr<const SharedSegment>& gradients) = 0;

  // Where weights lie that the shard named; they stay mapped as long as this object. OutOfRange: not within
  // the segment. Unavailable: no such segment came in time, or the shard is gone.
  virtual absl::StatusOr<const char*> Map(uint32_t segment, uint64_t offset, uint64_t bytes) = 0;
};

// One data stream (ParameterServer.Exchange), as its client has it. Messages arrive whole and in order, or
// the stream ends. Thread-safe.
class DataStream {
 public:
  // Who uses it. Called by one task of the event loop at a time, and not within calls of the stream.
  class User {
   public:
    virtual ~User() = default;
    // The channel has the message, and takes the next one.
    virtual void OnWritten() = 0;
    virtual void OnMessage(IncomingMessage message) = 0;
    // The last call. OK: the shard has ended the stream.
    virtual void OnEnd(const absl::Status& status) = 0;
  };

  virtual ~DataStream() = default;
  // One message at a time.
  virtual void Write(OutgoingMessage message) = 0;
  // Asks for the next message, or for the end; first of all calls, and then after each OnMessage(), within it
  // or soon after. `relaxed`: the user waits for nothing, so that other work may go first.
  virtual void Read(bool relaxed) = 0;
  // Ends the stream, with what is on its way.
  virtual void Cancel() = 0;
};

// Opens data streams to one shard. Thread-safe.
class ShardChannel {
 public:
  virtual ~ShardChannel() = default;

  // "ps:1 at 10.0.0.1:2222".
  virtual std::string name() const = 0;

  // Once, before all streams: waits until the shard can be reached. Where it is also looked for, unless it
  // has moved: at `otherwise`, if not empty; there it stays then. Unavailable: not before `deadline`.
  // FailedPrecondition: not in the way that the job's config asks for.
  virtual absl::Status Connect(std::chrono::steady_clock::time_point deadline,
                               const std::string& otherwise) = 0;

  // The shard is at this address from now on; empty: where it was first. False: it is there already.
  virtual bool MoveTo(const std::string& address) = 0;

  struct Opened {
    std::shared_ptr<DataStream> stream;
    // The client asks the shard to use it, on the stream. Null: there is none.
    std::shared_ptr<ShardMemory> memory;
    // To be called where the shard does not grant it.
    std::function<void()> refused;
  };
  // A stream to where the shard is now; that nobody is there shows when it ends. `user` is held, and `gone`
  // runs once when it has been let go, after OnEnd().
  virtual Opened Open(std::shared_ptr<DataStream::User> user, std::function<void()> gone) = 0;
};

}  // namespace weir
