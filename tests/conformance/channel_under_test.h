#pragma once

#include <chrono>
#include <cstddef>
#include <cstdint>
#include <functional>
#include <memory>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "client/exchange/shard_channel.h"
#include "common/threads/mutex.h"
#include "ps_server/exchange/exchange_request.h"

namespace weir {

// Wakes a test that waits for something to happen. Thread-safe.
class Bell {
 public:
  void Ring() {
    MutexLock lock(mutex_);
    ++rings_;
    rung_.NotifyAll();
  }
  // Calls done() now and after each ring, until it is true, for 20 seconds at most. Returns whether it was.
  bool Await(const std::function<bool()>& done) {
    const auto deadline = std::chrono::steady_clock::now() + std::chrono::seconds(20);
    while (true) {
      const uint64_t seen = rings();
      if (done()) return true;
      MutexLock lock(mutex_);
      while (rings_ == seen) {
        if (!rung_.WaitUntil(mutex_, deadline) && std::chrono::steady_clock::now() >= deadline) return false;
      }
    }
  }

 private:
  uint64_t rings() {
    MutexLock lock(mutex_);
    return rings_;
  }
  Mutex mutex_;
  CondVar rung_;
  uint64_t rings_ ABSL_GUARDED_BY(mutex_) = 0;
};

// The shard's end of a stream. Thread-safe.
class ShardEnd {
 public:
  virtual ~ShardEnd() = default;
  virtual void Send(std::string message) = 0;
  // Ends the stream, after what was sent.
  virtual void End(const absl::Status& status) = 0;
  // The bytes of the messages that have come.
  virtual std::vector<std::string> received() const = 0;
  // The client or the connection has ended the stream.
  virtual bool over() const = 0;
};

// A channel, and at its other end a shard that does what the test says. The suite tests an implementation of
// ShardChannel through one of these. Not thread-safe.
class ChannelUnderTest {
 public:
  virtual ~ChannelUnderTest() = default;

  // The channel; its shard is up.
  virtual ShardChannel& channel() = 0;
  // Lets time pass until done(). Returns false if that does not happen.
  virtual bool Await(const std::function<bool()>& done) = 0;
  // The bell that rings whenever something happens.
  virtual Bell& bell() = 0;

  // The streams that have begun on the shard, at all of its addresses, oldest first. A stream begins at the
  // latest with the client's first message.
  virtual std::vector<std::shared_ptr<ShardEnd>> streams() const = 0;
  // Ends the shard's process, without a message.
  virtual void Kill() = 0;

  // Only for a channel that shares memory:

  // The shard's side of the shared memory, until Kill().
  virtual SharedMemory& memory() = 0;
  // Memory for weights that clients can map.
  virtual std::shared_ptr<float> Allocate(size_t elements) = 0;
};

// An implementation, and which of the optional features it has.
struct ChannelKind {
  std::string name;
  bool shares_memory = false;
  // The shard takes segments of gradients beside the slots.
  bool takes_segments = false;
  std::function<std::unique_ptr<ChannelUnderTest>()> make;
};

}  // namespace weir
