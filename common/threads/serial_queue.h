#pragma once

#include <deque>
#include <functional>
#include <thread>
#include <utility>

#include "absl/functional/any_invocable.h"
#include "absl/status/statusor.h"
#include "common/threads/mutex.h"
#include "common/threads/thread.h"

namespace weir {

// Runs functions one at a time, in the order in which they were posted. State that only posted functions
// touch needs no lock.
//
// By default the queue has no thread: the thread that posts to an idle queue runs functions until the queue
// is empty again. So a function must not block, and must not take longer than a caller of Post() can wait: a
// few milliseconds. A queue whose functions take longer gets a thread of its own (StartThread()).
//
// A function may post to this queue (what it posts runs later, after the functions before it) and to others;
// so two queues may call each other freely.
class SerialQueue {
 public:
  SerialQueue() = default;
  SerialQueue(const SerialQueue&) = delete;
  SerialQueue& operator=(const SerialQueue&) = delete;
  // Waits until all posted functions have run. No thread may post any more. Must not be called from a posted
  // function.
  ~SerialQueue() {
    {
      MutexLock lock(mutex_);
      while (running_ || !queue_.empty()) idle_.Wait(mutex_);
      stopping_ = true;
      work_.NotifyAll();
    }
    if (thread_.joinable()) thread_.join();
  }

  void Post(std::function<void()> function) {
    {
      MutexLock lock(mutex_);
      queue_.push_back(std::move(function));
      if (has_thread_) work_.NotifyOne();
      if (running_ || has_thread_) return;
      running_ = true;
    }
    while (RunNext()) {
    }
  }

  // From now on functions run on a thread of the queue, not on its callers' threads. Called only from a
  // posted function, which is the last one to run where it was posted. False: the system gives no thread, and
  // nothing has changed.
  bool StartThread() {
    MutexLock lock(mutex_);
    if (has_thread_) return true;
    absl::StatusOr<std::thread> thread = MakeThread("run a queue", [this] {
      while (WaitForWork()) {
        while (RunNext()) {
        }
      }
    });
    if (!thread.ok()) return false;
    thread_ = *std::move(thread);
    has_thread_ = handed_over_ = true;
    return true;
  }

  // Posts a function, and waits until it has run. Not from a posted function of any queue.
  void Run(const std::function<void()>& function) {
    Mutex mutex;
    CondVar cv;
    bool done = false;
    Post([&] {
      function();
      MutexLock lock(mutex);
      done = true;
      cv.NotifyAll();
    });
    MutexLock lock(mutex);
    while (!done) cv.Wait(mutex);
  }

 private:
  // Runs one function, unless there is none, or the queue's thread is to run it. False: it ran none.
  bool RunNext() {
    std::function<void()> next;
    {
      MutexLock lock(mutex_);
      if (queue_.empty() || handed_over_) {
        running_ = handed_over_ = false;
        idle_.NotifyAll();
        if (has_thread_) work_.NotifyOne();
        return false;
      }
      next = std::move(queue_.front());
      queue_.pop_front();
    }
    next();
    return true;
  }

  // On the queue's thread. False: the queue is being destroyed.
  bool WaitForWork() {
    MutexLock lock(mutex_);
    while (!stopping_ && (running_ || queue_.empty())) work_.Wait(mutex_);
    if (stopping_) return false;
    running_ = true;
    return true;
  }

  Mutex mutex_;
  CondVar idle_, work_;
  std::deque<std::function<void()>> queue_ ABSL_GUARDED_BY(mutex_);
  // Some thread is in RunNext(), or about to be.
  bool running_ ABSL_GUARDED_BY(mutex_) = false;
  bool has_thread_ ABSL_GUARDED_BY(mutex_) = false;
  // The caller that still runs functions leaves the rest to the thread.
  bool handed_over_ ABSL_GUARDED_BY(mutex_) = false;
  bool stopping_ ABSL_GUARDED_BY(mutex_) = false;
  std::thread thread_;
};

// Runs tasks one at a time, in the order in which they were posted.
class Executor {
 public:
  // On any thread. `task` does not run within this call, and never runs once the executor has stopped.
  virtual void Post(absl::AnyInvocable<void()> task) = 0;

 protected:
  ~Executor() = default;
};

}  // namespace weir
