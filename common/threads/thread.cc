#include "common/threads/thread.h"

#include <sys/mman.h>
#include <sys/resource.h>

#include <algorithm>
#include <cstdlib>
#include <new>
#include <system_error>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "common/base/host.h"

namespace weir {
namespace {

constexpr size_t kSpare = 128 << 20;

absl::Status Refused(absl::string_view purpose, absl::string_view why) {
  const std::string limits = LimitsOfThreads();
  return absl::InternalError(absl::StrCat(
      "the system gives no thread to ", purpose, " (", why,
      "): a limit of threads, or of memory, is reached; ",
      limits.empty()
          ? "this process has no limit of its own, so the machine is out of either, or has reached "
            "kernel.threads-max or kernel.pid_max"
          : absl::StrCat("raise it. Limits here: ", limits)));
}

// The limit of the nearest control group that has one.
std::string LimitOfControlGroup(const std::string& root) {
  for (const std::string& limit : ControlGroupLines("pids", "pids.max", {"pids.max"}, root)) {
    if (limit != "max") return absl::StrCat("pids.max of the control group ", limit);
  }
  return "";
}

}  // namespace

absl::StatusOr<std::thread> MakeThread(absl::string_view purpose, absl::AnyInvocable<void()> run) {
  try {
    return std::thread(std::move(run));
  } catch (const std::system_error& error) {
    return Refused(purpose, error.code().message());
  } catch (const std::bad_alloc&) {
    return Refused(purpose, "out of memory");
  }
}

absl::Status CheckRoomForThreads(int count, absl::string_view purpose) {
  rlimit limit{};
  const bool limited = getrlimit(RLIMIT_AS, &limit) == 0 && limit.rlim_cur != RLIM_INFINITY;
  Mutex mutex;
  CondVar cv;
  bool over = false;
  std::vector<std::thread> threads;
  absl::Status status;
  for (int i = 0; i < count && status.ok(); ++i) {
    absl::StatusOr<std::thread> made = MakeThread(purpose, [&] {
      // malloc() reserves address space for threads that allocate, and keeps it for those that come later.
      void* volatile allocated = limited ? malloc(1) : nullptr;
      free(allocated);
      MutexLock lock(mutex);
      while (!over) cv.Wait(mutex);
    });
    if (made.ok()) {
      threads.push_back(*std::move(made));
    } else {
      status = absl::Status(made.status().code(), absl::StrCat(made.status().message(), ". Of ", count,
                                                               " more threads it gave ", i));
    }
  }
  if (status.ok() && limited) {
    // Threads that have begun need memory for their work.
    void* const spare = mmap(nullptr, kSpare, PROT_NONE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    if (spare == MAP_FAILED) {
      status = Refused(purpose, "out of address space");
    } else {
      munmap(spare, kSpare);
    }
  }
  {
    MutexLock lock(mutex);
    over = true;
    cv.NotifyAll();
  }
  for (std::thread& thread : threads) thread.join();
  return status;
}

std::string LimitsOfThreads(const std::string& root) {
  std::vector<std::string> limits;
  if (std::string group = LimitOfControlGroup(root); !group.empty()) limits.push_back(std::move(group));
  rlimit limit{};
  if (getrlimit(RLIMIT_NPROC, &limit) == 0 && limit.rlim_cur != RLIM_INFINITY) {
    limits.push_back(absl::StrCat("RLIMIT_NPROC (ulimit -u) ", limit.rlim_cur,
                                  " for all processes and threads of the user"));
  }
  if (getrlimit(RLIMIT_AS, &limit) == 0 && limit.rlim_cur != RLIM_INFINITY) {
    limits.push_back(absl::StrCat("RLIMIT_AS (ulimit -v) ", limit.rlim_cur >> 20, " MiB"));
  }
  // Each thread has a stack of this size.
  if (getrlimit(RLIMIT_STACK, &limit) == 0 && limit.rlim_cur != RLIM_INFINITY) {
    limits.push_back(absl::StrCat("RLIMIT_STACK (ulimit -s) ", limit.rlim_cur >> 20, " MiB for each thread"));
  }
  return absl::StrJoin(limits, ", ");
}

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
