#pragma once

#include <deque>
#include <functional>
#include <utility>

#include "common/sync/mutex.h"

namespace weir {

// Runs functions one at a time, in the order in which they were posted, without a thread of its own: whoever
// posts to an idle queue runs what is there until it is empty again. State that only posted functions touch
// needs no lock.
//
// A function may post to this queue (it runs later, after those before it) and to others; so two queues may
// call each other freely. It must not block.
class SerialQueue {
 public:
  SerialQueue() = default;
  SerialQueue(const SerialQueue&) = delete;
  SerialQueue& operator=(const SerialQueue&) = delete;
  // Waits until what was posted has run. Nobody may post any more, and it must not be called from a posted
  // function.
  ~SerialQueue() {
    MutexLock lock(mutex_);
    while (running_) idle_.Wait(mutex_);
  }

  void Post(std::function<void()> function) {
    {
      MutexLock lock(mutex_);
      queue_.push_back(std::move(function));
      if (running_) return;
      running_ = true;
    }
    while (true) {
      std::function<void()> next;
      {
        MutexLock lock(mutex_);
        if (queue_.empty()) {
          running_ = false;
          idle_.NotifyAll();
          return;
        }
        next = std::move(queue_.front());
        queue_.pop_front();
      }
      next();
    }
  }

  // Post, and wait until it has run. Not from a posted function of any queue.
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
  Mutex mutex_;
  CondVar idle_;
  std::deque<std::function<void()>> queue_ ABSL_GUARDED_BY(mutex_);
  bool running_ ABSL_GUARDED_BY(mutex_) = false;
};

}  // namespace weir
