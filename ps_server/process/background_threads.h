#pragma once

#include <atomic>
#include <functional>
#include <list>
#include <memory>
#include <system_error>
#include <thread>
#include <utility>

#include "common/sync/mutex.h"

namespace weir {

// Runs each function on a thread of its own. For a few functions that block on a disk and must not wait for
// each other. Thread-safe.
class BackgroundThreads {
 public:
  BackgroundThreads() = default;
  ~BackgroundThreads() { Finish(); }

  void Run(const std::function<void()>& work) {
    if (!Start(work)) work();  // the system cannot start another thread
  }

  // Waits until all functions have returned, including those that they started.
  void Finish() {
    while (true) {
      std::list<Running> running;
      {
        MutexLock lock(mutex_);
        running.swap(running_);
      }
      if (running.empty()) return;
      for (Running& one : running) one.thread.join();
    }
  }

 private:
  struct Running {
    std::thread thread;
    std::shared_ptr<std::atomic<bool>> done;
  };

  bool Start(const std::function<void()>& work) {
    MutexLock lock(mutex_);
    running_.remove_if([](Running& running) {
      if (!*running.done) return false;
      running.thread.join();
      return true;
    });
    auto done = std::make_shared<std::atomic<bool>>(false);
    try {
      std::thread thread([work, done] {
        work();
        *done = true;
      });
      running_.push_back({std::move(thread), std::move(done)});
      return true;
    } catch (const std::system_error&) {
      return false;
    }
  }

  Mutex mutex_;
  std::list<Running> running_ ABSL_GUARDED_BY(mutex_);
};

}  // namespace weir
