#pragma once

#include <chrono>
#include <cstdint>
#include <memory>
#include <utility>

#include "absl/functional/any_invocable.h"
#include "client/exchange/event_loop.h"
#include "common/sync/future.h"

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
class GrpcPoller final : public EventLoop {
 public:
  using Steady = std::chrono::steady_clock;

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
  std::shared_ptr<ResultDriver> driver() override;

  // Runs `then` on the polling thread, when it is `when` or soon after.
  Timer RunAt(Steady::time_point when, absl::AnyInvocable<void()> then);
  Timer RunAfter(std::chrono::nanoseconds wait, absl::AnyInvocable<void()> then) override {
    return RunAt(Steady::now() + wait, std::move(then));
  }
  void Post(absl::AnyInvocable<void()> task) override { RunAt(Steady::time_point::min(), std::move(task)); }
  void Cancel(const Timer& timer) override;
  uint32_t Random() override;

 private:
  struct Impl;
  const std::shared_ptr<Impl> impl_;
};

}  // namespace weir
