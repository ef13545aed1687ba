#pragma once

#include <functional>
#include <utility>

#include "common/sync/mutex.h"

namespace weir {

// Counts what is lent out, and reports when all of it is back. Thread-safe.
class Loans {
 public:
  void Lend() {
    MutexLock lock(mutex_);
    ++out_;
  }

  void Return() {
    std::function<void()> then;
    {
      MutexLock lock(mutex_);
      if (--out_ == 0) then.swap(then_);
    }
    if (then) then();
  }

  bool out() const {
    MutexLock lock(mutex_);
    return out_ > 0;
  }

  // Runs `then` once nothing is lent out: at once, or on the thread that returns the last loan. At most one
  // `then` may wait.
  void WhenReturned(std::function<void()> then) {
    {
      MutexLock lock(mutex_);
      if (out_ > 0) {
        then_ = std::move(then);
        return;
      }
    }
    then();
  }

 private:
  mutable Mutex mutex_;
  int out_ ABSL_GUARDED_BY(mutex_) = 0;
  std::function<void()> then_ ABSL_GUARDED_BY(mutex_);
};

}  // namespace weir
