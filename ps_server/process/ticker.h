#pragma once

#include <chrono>
#include <functional>
#include <thread>

#include "common/sync/mutex.h"

namespace weir {

// A thread that looks after what waits: calls `tick` at even intervals, and `check` between them when asked
// to. Thread-safe.
class Ticker {
 public:
  using Clock = std::chrono::steady_clock;

  ~Ticker() { Stop(); }

  void Start(std::chrono::milliseconds interval, std::function<void()> tick, std::function<void()> check);
  // Calls nothing more once it returns. Not from `tick` or `check`.
  void Stop();
  // `check` is called once after so long, or earlier if that was asked for. Also before Start() and after
  // Stop(), in vain.
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
