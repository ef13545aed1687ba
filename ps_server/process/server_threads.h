#pragma once

#include <atomic>
#include <chrono>
#include <functional>
#include <list>
#include <memory>
#include <thread>
#include <utility>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "common/threads/mutex.h"
#include "common/threads/thread.h"

namespace weir {

// A thread for periodic work: calls `tick` at even intervals, and `check` in between on request. Thread-safe.
class Ticker {
 public:
  using Clock = std::chrono::steady_clock;

  ~Ticker() { Stop(); }

  // An error: the system gives no thread.
  absl::Status Start(std::chrono::milliseconds interval, std::function<void()> tick,
                     std::function<void()> check);
  // Calls neither function after it returns. Must not be called from `tick` or `check`.
  void Stop();
  // Calls `check` once after this time, or earlier if an earlier time was requested. Allowed before Start(),
  // and after Stop(), where it has no effect.
  void CheckIn(std::chrono::nanoseconds time);

 private:
  void Run(std::chrono::milliseconds interval, const std::function<void()>& tick,
           const std::function<void()>& check);

  std::thread thread_;
  Mutex mutex_;
  CondVar changed_;
  bool stopping_ ABSL_GUARDED_BY(mutex_) = false;
  Clock::time_point check_at_ ABSL_GUARDED_BY(mutex_) = Clock::time_point::max();
};

// Runs each function on a thread of its own. For a few functions that block on a disk and must not wait for
// each other. Where the system gives no thread, functions run on a spare one, one after another. No function
// runs on the thread that calls Run(): the function may wait for that thread. Thread-safe.
class BackgroundThreads {
 public:
  BackgroundThreads() = default;
  ~BackgroundThreads() { Finish(); }

  // Called first. An error: the system gives no spare thread.
  absl::Status Start() {
    auto made = WorkThread::Start("write checkpoints and logs");
    if (!made.ok()) return made.status();
    spare_ = *std::move(made);
    return absl::OkStatus();
  }

  void Run(std::function<void()> work) {
    MutexLock lock(mutex_);
    running_.remove_if([](Running& running) {
      if (!*running.done) return false;
      running.thread.join();
      return true;
    });
    auto done = std::make_shared<std::atomic<bool>>(false);
    absl::StatusOr<std::thread> thread = MakeThread("write checkpoints and logs", [work, done] {
      work();
      *done = true;
    });
    if (thread.ok()) {
      running_.push_back({*std::move(thread), std::move(done)});
      return;
    }
    ++on_spare_;
    spare_->Post([this, work = std::move(work)] {
      work();
      MutexLock lock(mutex_);
      --on_spare_;
      spare_ran_.NotifyAll();
    });
  }

  // Waits until all functions have returned, including those that they started.
  void Finish() {
    while (true) {
      std::list<Running> running;
      {
        MutexLock lock(mutex_);
        while (on_spare_ > 0) spare_ran_.Wait(mutex_);
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

  Mutex mutex_;
  CondVar spare_ran_;
  std::list<Running> running_ ABSL_GUARDED_BY(mutex_);
  int on_spare_ ABSL_GUARDED_BY(mutex_) = 0;
  std::unique_ptr<WorkThread> spare_;
};

}  // namespace weir
