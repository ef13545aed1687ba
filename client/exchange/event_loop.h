#pragma once

#include <chrono>
#include <cstdint>
#include <memory>
#include <utility>

#include "absl/functional/any_invocable.h"
#include "common/system/clock.h"
#include "common/threads/future.h"
#include "common/threads/serial_queue.h"

namespace weir {

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

}  // namespace weir
