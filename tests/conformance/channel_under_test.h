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
#include "common/sync/mutex.h"
#include "ps_server/exchange/shared_memory.h"

namespace weir {

// Tells whoever waits in a test that something has happened. Thread-safe.
class Bell {
 public:
  void Ring() {
    MutexLock lock(mutex_);
    ++rings_;
    rung_.NotifyAll();
  }
  // Looks again after each ring; returns done(), after 20 seconds at most.
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
  // The bytes of the messages that came.
  virtual std::vector<std::string> received() const = 0;
  // The client, or the way between, has ended the stream.
  virtual bool over() const = 0;
};

// A channel, and at its other end a shard that does what the test says. An implementation of ShardChannel
// enters the suite with one of these. For one thread.
class ChannelUnderTest {
 public:
  virtual ~ChannelUnderTest() = default;

  // The shard is up.
  virtual ShardChannel& channel() = 0;
  // Lets time pass until done(). False: it never is.
  virtual bool Await(const std::function<bool()>& done) = 0;
  // Is rung wherever something happens.
  virtual Bell& bell() = 0;

  // The streams that the shard has seen begin, oldest first, at all of its addresses. One begins at the
  // latest with the client's first message.
  virtual std::vector<std::shared_ptr<ShardEnd>> streams() const = 0;
  // The shard's process ends, without a word.
  virtual void Kill() = 0;

  // Of a channel that shares memory.

  // The shard's side of it, until Kill().
  virtual SharedMemory& memory() = 0;
  // Memory for weights, which clients can map.
  virtual std::shared_ptr<float> Allocate(size_t elements) = 0;
};

// An implementation, and what it has of what an implementation may do without.
struct ChannelKind {
  std::string name;
  bool shares_memory = false;
  // The shard takes segments of gradients beside the slots.
  bool takes_segments = false;
  std::function<std::unique_ptr<ChannelUnderTest>()> make;
};

}  // namespace weir
