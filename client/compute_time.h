#pragma once

#include <chrono>
#include <utility>

#include "absl/base/thread_annotations.h"
#include "common/threads/mutex.h"

namespace weir {

// How long this process has computed gradients (ClientOptions::compute_seconds). Thread-safe.
class ComputeTime {
 public:
  using Clock = std::chrono::steady_clock;

  // Two calls in turn: the process computes from now on, or does not. A call that changes nothing is ignored.
  void Start(Clock::time_point now = Clock::now()) {
    MutexLock lock(mutex_);
    if (std::exchange(running_, true)) return;
    since_ = now;
  }
  void Stop(Clock::time_point now = Clock::now()) {
    MutexLock lock(mutex_);
    if (std::exchange(running_, false)) total_ += now - since_;
  }
  // Until now, the computation under way included.
  double Seconds(Clock::time_point now = Clock::now()) const {
    MutexLock lock(mutex_);
    return std::chrono::duration<double>(running_ ? total_ + (now - since_) : total_).count();
  }

 private:
  mutable Mutex mutex_;
  bool running_ ABSL_GUARDED_BY(mutex_) = false;
  Clock::time_point since_ ABSL_GUARDED_BY(mutex_);
  Clock::duration total_ ABSL_GUARDED_BY(mutex_) = Clock::duration::zero();
};

}  // namespace weir
