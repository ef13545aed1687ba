#pragma once

#include <functional>
#include <memory>
#include <optional>
#include <utility>
#include <vector>

#include "absl/functional/function_ref.h"
#include "absl/status/statusor.h"
#include "common/sync/mutex.h"

namespace weir {

template <typename T>
class Promise;

// Lets a thread that waits for a result work on it meanwhile, instead of being woken by the one that does.
class ResultDriver {
 public:
  virtual ~ResultDriver() = default;
  // Returns when ready(). May be called by several threads at once, and after whoever sets results is gone,
  // then without any that would not be ready. `sleep` returns when ready(), whoever sees to that.
  virtual void WaitUntil(absl::FunctionRef<bool()> ready, absl::FunctionRef<void()> sleep) = 0;
};

// The result of a call that runs elsewhere. Copies share one result. Thread-safe, but for Take().
//
// Every call of Weir that returns a Future has a deadline of its own, after which the Future holds an error;
// so Get() waits, but never for ever.
template <typename T>
class Future {
 public:
  bool ready() const {
    MutexLock lock(state_->mutex);
    return state_->result.has_value();
  }

  // Waits for the result. What others wait for may be worked on meanwhile, on this thread: their OnReady().
  const absl::StatusOr<T>& Get() const ABSL_NO_THREAD_SAFETY_ANALYSIS {
    const auto sleep = [this] {
      MutexLock lock(state_->mutex);
      while (!state_->result.has_value()) state_->cv.Wait(state_->mutex);
    };
    if (state_->driver != nullptr && !ready()) state_->driver->WaitUntil([this] { return ready(); }, sleep);
    sleep();
    return *state_->result;
  }

  // For who waits for something that the call brings before its result: returns as sleep() does, which is to
  // return when ready(). As in Get(), the call may be worked on meanwhile.
  void WaitUntil(absl::FunctionRef<bool()> ready, absl::FunctionRef<void()> sleep) const {
    if (state_->driver != nullptr && !ready()) state_->driver->WaitUntil(ready, sleep);
    sleep();
  }

  // Get(), and takes the result with it, which nobody may ask for again. For what cannot be copied.
  absl::StatusOr<T> Take() ABSL_NO_THREAD_SAFETY_ANALYSIS {
    Get();
    return *std::move(state_->result);
  }

  // Runs `then` once: at once if the result is there, else on the thread that sets it, where it must not
  // block, nor take a lock that some thread holds while it waits in Get().
  void OnReady(std::function<void(const absl::StatusOr<T>&)> then) const ABSL_NO_THREAD_SAFETY_ANALYSIS {
    {
      MutexLock lock(state_->mutex);
      if (!state_->result.has_value()) {
        state_->then.push_back(std::move(then));
        return;
      }
    }
    then(*state_->result);
  }

 private:
  friend class Promise<T>;
  struct State {
    mutable Mutex mutex;
    CondVar cv;
    // Set once and then constant, so that it may be read without the mutex by whoever has seen it set.
    std::optional<absl::StatusOr<T>> result ABSL_GUARDED_BY(mutex);
    std::vector<std::function<void(const absl::StatusOr<T>&)>> then ABSL_GUARDED_BY(mutex);
    std::shared_ptr<ResultDriver> driver;
  };
  explicit Future(std::shared_ptr<State> state) : state_(std::move(state)) {}
  std::shared_ptr<State> state_;
};

// The other end. Set() is called once.
template <typename T>
class Promise {
 public:
  // `driver`: of the thread that waits; nullptr: it sleeps.
  explicit Promise(std::shared_ptr<ResultDriver> driver = nullptr)
      : state_(std::make_shared<typename Future<T>::State>()) {
    state_->driver = std::move(driver);
  }
  Future<T> future() const { return Future<T>(state_); }

  void Set(absl::StatusOr<T> result) ABSL_NO_THREAD_SAFETY_ANALYSIS {
    std::vector<std::function<void(const absl::StatusOr<T>&)>> then;
    {
      MutexLock lock(state_->mutex);
      state_->result.emplace(std::move(result));
      then.swap(state_->then);
    }
    state_->cv.NotifyAll();
    for (auto& f : then) f(*state_->result);
  }

 private:
  std::shared_ptr<typename Future<T>::State> state_;
};

}  // namespace weir
