#pragma once

#include <chrono>
#include <cstdint>
#include <memory>
#include <utility>

#include "absl/functional/any_invocable.h"
#include "common/sync/executor.h"
#include "common/sync/future.h"
#include "common/system/clock.h"

namespace weir {

// The thread that a client's exchanges happen on: its tasks and timers, the time, and chance. A simulation
// has its own.
//
// Thread-safe. Outlives whatever uses it.
class EventLoop : public Executor {
 public:
  // Of steady_clock, and a number.
  using Timer = std::pair<std::chrono::steady_clock::time_point, uint64_t>;

  // Runs `then` on the loop, after `wait` or soon after.
  virtual Timer RunAfter(std::chrono::nanoseconds wait, absl::AnyInvocable<void()> then) = 0;
  // It will not run, unless it has begun to, or has run.
  virtual void Cancel(const Timer& timer) = 0;

  // Lets a thread that waits for a result of the loop work on the loop meanwhile. nullptr: it sleeps.
  virtual std::shared_ptr<ResultDriver> driver() { return nullptr; }

  // As in common/system/clock.h.
  virtual const Clock& awake() const { return Clock::Awake(); }
  virtual const Clock& real() const { return Clock::Real(); }
  // Uniform.
  virtual uint32_t Random() = 0;

 protected:
  ~EventLoop() = default;
};

}  // namespace weir
