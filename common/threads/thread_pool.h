#pragma once

#include <atomic>
#include <cstdint>
#include <thread>
#include <vector>

#include "absl/base/thread_annotations.h"
#include "absl/functional/function_ref.h"
#include "common/threads/mutex.h"

namespace weir {

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
