#pragma once

#include <algorithm>
#include <chrono>
#include <condition_variable>
#include <mutex>
#include <optional>

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

class CondVar;

// Replaces how threads wait: a simulation runs programs as fibers of one thread, which give way to each
// other. Holds for the thread that sets it.
class Waiting {
 public:
  // Returns whether the caller is one of the fibers. Otherwise the caller sleeps.
  virtual bool GivesWay() const = 0;
  // Returns when `on` was notified or, false, when `limit` has passed.
  virtual bool Wait(const CondVar& on, std::chrono::nanoseconds limit) = 0;
  virtual void Notified(const CondVar& of) = 0;

  // nullptr: threads sleep.
  static Waiting*& current() {
    static thread_local Waiting* waiting = nullptr;
    return waiting;
  }

 protected:
  ~Waiting() = default;
};

// Wait with the mutex held; as with any condition variable, in a loop over the condition.
class CondVar {
 public:
  void Wait(Mutex& mutex) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex) {
    if (GaveWay(mutex, std::chrono::nanoseconds::max()).has_value()) return;
    std::unique_lock<std::mutex> lock(mutex.mutex_, std::adopt_lock);
    cv_.wait(lock);
    lock.release();
  }
  // False when the deadline has passed.
  bool WaitUntil(Mutex& mutex, std::chrono::steady_clock::time_point deadline)
      ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex) {
    const auto gave_way = GaveWay(mutex, deadline - std::chrono::steady_clock::now());
    if (gave_way.has_value()) return *gave_way;
    std::unique_lock<std::mutex> lock(mutex.mutex_, std::adopt_lock);
#ifdef WEIR_TSAN
    // ThreadSanitizer of GCC 12 does not know pthread_cond_clockwait. A wait by the time of day gets longer
    // when somebody sets the clock back.
    constexpr std::chrono::nanoseconds kLongest = std::chrono::hours(24);
    const auto left =
        std::min<std::chrono::nanoseconds>(deadline - std::chrono::steady_clock::now(), kLongest);
    const bool in_time =
        cv_.wait_until(lock, std::chrono::system_clock::now() + left) == std::cv_status::no_timeout;
#else
    const bool in_time = cv_.wait_until(lock, deadline) == std::cv_status::no_timeout;
#endif
    lock.release();
    return in_time;
  }
  // False when `limit` has passed.
  bool WaitFor(Mutex& mutex, std::chrono::nanoseconds limit) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex) {
    const auto gave_way = GaveWay(mutex, limit);
    if (gave_way.has_value()) return *gave_way;
    constexpr std::chrono::hours kLongest(24);
    return WaitUntil(mutex, std::chrono::steady_clock::now() + (limit < kLongest ? limit : kLongest));
  }
  void NotifyOne() {
    cv_.notify_one();
    if (Waiting::current() != nullptr) Waiting::current()->Notified(*this);
  }
  void NotifyAll() {
    cv_.notify_all();
    if (Waiting::current() != nullptr) Waiting::current()->Notified(*this);
  }

 private:
  // nullopt: the caller sleeps.
  std::optional<bool> GaveWay(Mutex& mutex, std::chrono::nanoseconds limit) ABSL_NO_THREAD_SAFETY_ANALYSIS {
    Waiting* const waiting = Waiting::current();
    if (waiting == nullptr || !waiting->GivesWay()) return std::nullopt;
    mutex.Unlock();
    const bool in_time = waiting->Wait(*this, limit);
    mutex.Lock();
    return in_time;
  }

  std::condition_variable cv_;
};

}  // namespace weir
