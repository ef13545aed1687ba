#pragma once

#include <deque>
#include <utility>

#include "absl/functional/any_invocable.h"
#include "common/threads/mutex.h"
#include "common/threads/serial_queue.h"

namespace weir {

// Runs its tasks, and those that they post, when the test calls Run(). Any thread may post.
class TaskQueue final : public Executor {
 public:
  void Post(absl::AnyInvocable<void()> task) override {
    MutexLock lock(mutex_);
    tasks_.push_back(std::move(task));
  }
  void Run() {
    while (absl::AnyInvocable<void()> task = Next()) task();
  }

 private:
  // Null: there is none.
  absl::AnyInvocable<void()> Next() {
    MutexLock lock(mutex_);
    if (tasks_.empty()) return nullptr;
    absl::AnyInvocable<void()> task = std::move(tasks_.front());
    tasks_.pop_front();
    return task;
  }

  Mutex mutex_;
  std::deque<absl::AnyInvocable<void()>> tasks_ ABSL_GUARDED_BY(mutex_);
};

}  // namespace weir
