#pragma once

#include <deque>
#include <functional>
#include <memory>
#include <string>
#include <thread>
#include <utility>

#include "absl/functional/any_invocable.h"
#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "common/threads/mutex.h"

namespace weir {

// Starts a thread that runs `run`. The system may refuse: a limit of threads or of memory is reached. Then
// the error, Internal, says what the thread was to do ("serve HTTP") and which limits there are.
//
// std::thread and std::async throw where the system refuses, which ends the process.
absl::StatusOr<std::thread> MakeThread(absl::string_view purpose, absl::AnyInvocable<void()> run);

// Whether the system would give `count` more threads now; the error is as that of MakeThread(). For libraries
// that make threads of their own, and hang where the system refuses one.
absl::Status CheckRoomForThreads(int count, absl::string_view purpose);

// The limits of threads and memory that this process has, as text; "" if there are none. `root`: a folder in
// the place of the file system's root.
std::string LimitsOfThreads(const std::string& root = "");

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
