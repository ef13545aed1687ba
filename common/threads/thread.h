#pragma once

#include <atomic>
#include <cstdint>
#include <deque>
#include <functional>
#include <memory>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include "absl/base/thread_annotations.h"
#include "absl/functional/any_invocable.h"
#include "absl/functional/function_ref.h"
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

// A fixed set of threads that share loops with the threads that call ParallelFor.
//
// Thread-safe: several threads may call ParallelFor at once, and a body may call it again. Callers work on
// their own loop and wait only for bodies that have begun, so no call ever waits for a free thread. No call
// allocates.
class ThreadPool {
 public:
  // `threads` counts the caller of ParallelFor as one, so threads - 1 are started (fewer if the system
  // refuses, see threads()); one or less starts none.
  explicit ThreadPool(int threads);
  // No ParallelFor may be under way.
  ~ThreadPool();
  ThreadPool(const ThreadPool&) = delete;
  ThreadPool& operator=(const ThreadPool&) = delete;

  // The most threads that work on one loop, its caller included. At least 1.
  int threads() const { return static_cast<int>(helpers_.size()) + 1; }

  // Runs body(0) ... body(n - 1), each once, in no set order and on any of the threads; returns when all are
  // done, and sees what they wrote. The body must not throw.
  void ParallelFor(int64_t n, absl::FunctionRef<void(int64_t)> body) ABSL_LOCKS_EXCLUDED(mutex_);

 private:
  // One call of ParallelFor; lives on its caller's stack. It may leave that stack only when it is off the
  // list (so no thread joins) and `helping` is 0 (so no thread is left).
  struct Loop {
    Loop(int64_t n, absl::FunctionRef<void(int64_t)> body) : n(n), body(body) {}
    void Run();

    const int64_t n;
    const absl::FunctionRef<void(int64_t)> body;
    std::atomic<int64_t> next{0};  // the first index that no thread has taken; n or more: none is left
    // Guarded by the pool's mutex:
    int helping = 0;
    bool listed = true;
    Loop* following = nullptr;
    CondVar all_left;
  };

  void Help() ABSL_LOCKS_EXCLUDED(mutex_);
  void Unlist(Loop& loop) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);

  Mutex mutex_;
  CondVar work_;
  Loop* first_ ABSL_GUARDED_BY(mutex_) = nullptr;  // loops that may have indices left, oldest first
  bool stopping_ ABSL_GUARDED_BY(mutex_) = false;
  std::vector<std::thread> helpers_;  // unchanged between constructor and destructor
};

}  // namespace weir
