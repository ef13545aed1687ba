#pragma once

#include <chrono>
#include <functional>
#include <thread>

#include "absl/status/status.h"
#include "common/threads/mutex.h"

namespace weir {

// A thread for periodic work: calls `tick` at even intervals, and `check` in between on request. Thread-safe.
class Ticker {
 public:
  using Clock = std::chrono::steady_clock;

  ~Ticker() { Stop(); }

  // An error: the system gives no thread.
  absl::Status Start(std::chrono::milliseconds interval, std::function<void()> tick,
                     std::function<void()> check);
  // Calls neither function after it returns. Must not be called from `tick` or `check`.
  void Stop();
  // Calls `check` once after this time, or earlier if an earlier time was requested. Allowed before Start(),
  // and after Stop(), where it has no effect.
  void CheckIn(std::chrono::nanoseconds time);

 private:
  void Run(std::chrono::milliseconds interval, const std::function<void()>& tick,
           const std::function<void()>& check);

  std::thread thread_;
  Mutex mutex_;
  CondVar changed_;
  bool stopping_ ABSL_GUARDED_BY(mutex_) = false;
  Clock::time_point check_at_ ABSL_GUARDED_BY(mutex_) = Clock::time_point::max();
};

}  // namespace weir
