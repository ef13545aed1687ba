#pragma once

#include <chrono>
#include <cstdint>
#include <functional>
#include <memory>
#include <utility>

#include "common/future.h"

namespace grpc {
class CompletionQueue;
}

namespace weir {

// A completion queue, the thread that serves it, and that thread's timers. All that the streams of clients
// bring is handled there, one event after another, so that what only handlers touch needs no lock.
//
// The clients of a process share one: with a queue each, gRPC would have the thread of one take the events of
// all from the kernel and hand them over, which costs several switches of threads for each message.
//
// Thread-safe. Outlives whatever uses it: no operation is under way when it is destroyed.
class GrpcPoller {
 public:
  using Clock = std::chrono::steady_clock;

  // The tag of an operation on queue(). It must stay until OnEvent(), which runs on the polling thread and
  // must not block.
  class Event {
   public:
    virtual void OnEvent(bool ok) = 0;

   protected:
    ~Event() = default;
  };

  // Before a polling thread sleeps, it looks for events for `busy_poll`.
  explicit GrpcPoller(std::chrono::microseconds busy_poll);
  // That of this process with this `busy_poll`; it goes with the last one who holds it. Not from a handler.
  static std::shared_ptr<GrpcPoller> Shared(std::chrono::microseconds busy_poll);
  ~GrpcPoller();

  grpc::CompletionQueue* queue();
  // For the results that come about here.
  std::shared_ptr<ResultDriver> driver();

  using Timer = std::pair<Clock::time_point, uint64_t>;
  // Runs `then` on the polling thread, when it is `when` or soon after.
  Timer RunAt(Clock::time_point when, std::function<void()> then);
  void RunSoon(std::function<void()> then) { RunAt(Clock::time_point::min(), std::move(then)); }
  // It will not run, unless it has begun to, or has run.
  void Cancel(const Timer& timer);

 private:
  struct Impl;
  const std::shared_ptr<Impl> impl_;
};

}  // namespace weir
