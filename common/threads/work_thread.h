#pragma once

#include <deque>
#include <functional>
#include <memory>
#include <thread>
#include <utility>

#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "common/threads/mutex.h"
#include "common/threads/thread.h"

namespace weir {

// Runs functions in order, on a thread of its own. Thread-safe.
class WorkThread {
 public:
  // `purpose` and the error as for MakeThread().
  static absl::StatusOr<std::unique_ptr<WorkThread>> Start(absl::string_view purpose) {
    std::unique_ptr<WorkThread> made(new WorkThread);
    absl::StatusOr<std::thread> thread = MakeThread(purpose, [to = made.get()] { to->Loop(); });
    if (!thread.ok()) return thread.status();
    made->thread_ = *std::move(thread);
    return made;
  }
  // All that was posted runs before.
  ~WorkThread() {
    if (!thread_.joinable()) return;
    Post(nullptr);
    thread_.join();
  }

  void Post(std::function<void()> work) {
    MutexLock lock(mutex_);
    queue_.push_back(std::move(work));
    changed_.NotifyAll();
  }

 private:
  WorkThread() = default;

  void Loop() {
    while (true) {
      std::function<void()> work;
      {
        MutexLock lock(mutex_);
        while (queue_.empty()) changed_.Wait(mutex_);
        work = std::move(queue_.front());
        queue_.pop_front();
      }
      if (work == nullptr) return;
      work();
    }
  }

  Mutex mutex_;
  CondVar changed_;
  // An empty function ends the thread.
  std::deque<std::function<void()>> queue_ ABSL_GUARDED_BY(mutex_);
  std::thread thread_;
};

}  // namespace weir
