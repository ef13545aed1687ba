#include "common/threads/thread_pool.h"

#include <algorithm>
#include <utility>

#include "absl/status/statusor.h"
#include "common/threads/thread.h"

namespace weir {

ThreadPool::ThreadPool(int threads) {
  helpers_.reserve(std::max(threads - 1, 0));
  for (int i = 1; i < threads; ++i) {
    absl::StatusOr<std::thread> helper = MakeThread("help with loops", [this] { Help(); });
    if (!helper.ok()) break;  // those that run, the callers at least, do the work
    helpers_.push_back(*std::move(helper));
  }
}

ThreadPool::~ThreadPool() {
  {
    MutexLock lock(mutex_);
    stopping_ = true;
  }
  work_.NotifyAll();
  for (std::thread& helper : helpers_) helper.join();
}

void ThreadPool::Loop::Run() {
  // Relaxed: the index is all that is passed on here. The mutex orders the rest, before joining and after
  // leaving.
  for (int64_t i; (i = next.fetch_add(1, std::memory_order_relaxed)) < n;) body(i);
}

void ThreadPool::ParallelFor(int64_t n, absl::FunctionRef<void(int64_t)> body) {
  if (n <= 1 || helpers_.empty()) {
    for (int64_t i = 0; i < n; ++i) body(i);
    return;
  }
  Loop loop(n, body);
  {
    MutexLock lock(mutex_);
    Loop** end = &first_;
    while (*end != nullptr) end = &(*end)->following;
    *end = &loop;
  }
  const int64_t wanted = std::min<int64_t>(n - 1, static_cast<int64_t>(helpers_.size()));
  for (int64_t i = 0; i < wanted; ++i) work_.NotifyOne();
  loop.Run();
  MutexLock lock(mutex_);
  Unlist(loop);
  while (loop.helping > 0) loop.all_left.Wait(mutex_);
}

void ThreadPool::Unlist(Loop& loop) {
  if (!loop.listed) return;
  Loop** link = &first_;
  while (*link != &loop) link = &(*link)->following;
  *link = loop.following;
  loop.listed = false;
}

void ThreadPool::Help() {
  MutexLock lock(mutex_);
  while (true) {
    while (first_ == nullptr && !stopping_) work_.Wait(mutex_);
    if (first_ == nullptr) return;
    Loop& loop = *first_;
    ++loop.helping;
    mutex_.Unlock();
    loop.Run();
    mutex_.Lock();
    Unlist(loop);
    // Under the mutex: once it is free, the loop and its condition variable may be gone.
    if (--loop.helping == 0) loop.all_left.NotifyOne();
  }
}

}  // namespace weir
