#pragma once

#include <chrono>
#include <condition_variable>
#include <mutex>

#include "absl/base/thread_annotations.h"

namespace weir {

// std::mutex with Clang's thread-safety annotations. Not absl::Mutex: ThreadSanitizer does not see inside the
// packaged libabsl and would report its correct users as races.
class ABSL_LOCKABLE Mutex {
 public:
  void Lock() ABSL_EXCLUSIVE_LOCK_FUNCTION() { mutex_.lock(); }
  void Unlock() ABSL_UNLOCK_FUNCTION() { mutex_.unlock(); }

 private:
  friend class CondVar;
  std::mutex mutex_;
};

class ABSL_SCOPED_LOCKABLE MutexLock {
 public:
  explicit MutexLock(Mutex& mutex) ABSL_EXCLUSIVE_LOCK_FUNCTION(mutex) : mutex_(mutex) { mutex_.Lock(); }
  ~MutexLock() ABSL_UNLOCK_FUNCTION() { mutex_.Unlock(); }
  MutexLock(const MutexLock&) = delete;
  MutexLock& operator=(const MutexLock&) = delete;

 private:
  Mutex& mutex_;
};

// Wait with the mutex held; as with any condition variable, in a loop over the condition.
class CondVar {
 public:
  void Wait(Mutex& mutex) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex) {
    std::unique_lock<std::mutex> lock(mutex.mutex_, std::adopt_lock);
    cv_.wait(lock);
    lock.release();
  }
  // False when the deadline has passed.
  bool WaitUntil(Mutex& mutex, std::chrono::steady_clock::time_point deadline)
      ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex) {
    std::unique_lock<std::mutex> lock(mutex.mutex_, std::adopt_lock);
    // Not wait_until on the steady clock directly: ThreadSanitizer of GCC 12 does not know
    // pthread_cond_clockwait.
    const auto left = deadline - std::chrono::steady_clock::now();
    const bool in_time =
        cv_.wait_until(lock, std::chrono::system_clock::now() + left) == std::cv_status::no_timeout;
    lock.release();
    return in_time;
  }
  // False when so long has passed.
  bool WaitFor(Mutex& mutex, std::chrono::nanoseconds limit) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex) {
    constexpr std::chrono::hours kLongest(24);
    return WaitUntil(mutex, std::chrono::steady_clock::now() + (limit < kLongest ? limit : kLongest));
  }
  void NotifyOne() { cv_.notify_one(); }
  void NotifyAll() { cv_.notify_all(); }

 private:
  std::condition_variable cv_;
};

}  // namespace weir
