#pragma once

#include <deque>
#include <utility>

#include "absl/functional/any_invocable.h"
#include "common/sync/executor.h"

namespace weir {

// Runs its tasks, and those that they post, when the test calls Run(). Not thread-safe.
class TaskQueue final : public Executor {
 public:
  void Post(absl::AnyInvocable<void()> task) override { tasks_.push_back(std::move(task)); }
  void Run() {
    while (!tasks_.empty()) {
      absl::AnyInvocable<void()> task = std::move(tasks_.front());
      tasks_.pop_front();
      task();
    }
  }

 private:
  std::deque<absl::AnyInvocable<void()>> tasks_;
};

}  // namespace weir
