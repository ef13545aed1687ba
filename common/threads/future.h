#pragma once

#include <chrono>
#include <functional>
#include <memory>
#include <optional>
#include <type_traits>
#include <utility>
#include <vector>

#include "absl/functional/function_ref.h"
#include "absl/status/statusor.h"
#include "common/threads/mutex.h"

namespace weir {

template <typename T>
class Promise;

// Lets a thread that waits for a result do the work for it meanwhile, instead of being woken by another
// thread.
class ResultDriver {
 public:
  virtual ~ResultDriver() = default;
  using Deadline = std::chrono::steady_clock::time_point;

  // Returns when ready(), which is true from `deadline` on at the latest. `sleep` returns when ready(),
  // whichever thread sets the result.
  // Requires: ready(), if the thread that sets results is gone.
  // Thread safety: several threads may call this at once.
  virtual void WaitUntil(absl::FunctionRef<bool()> ready, absl::FunctionRef<void()> sleep,
                         Deadline deadline = Deadline::max()) = 0;
};

// The result of a call that runs elsewhere. Copies share one result.
//
// Every call of Weir that returns a Future has a deadline, after which the Future holds an error. So Get()
// waits, but never for ever.
//
// Thread safety: all functions but Take() and Then() are thread-safe.
template <typename T>
class Future {
 public:
  bool ready() const {
    MutexLock lock(state_->mutex);
    return state_->result.has_value();
  }

  // Waits for the result. Meanwhile this thread may work on other results, and run their OnReady().
  const absl::StatusOr<T>& Get() const ABSL_NO_THREAD_SAFETY_ANALYSIS {
    const auto sleep = [this] {
      MutexLock lock(state_->mutex);
      while (!state_->result.has_value()) state_->cv.Wait(state_->mutex);
    };
    if (state_->driver != nullptr && !ready()) state_->driver->WaitUntil([this] { return ready(); }, sleep);
    sleep();
    return *state_->result;
  }

  // Waits for something that the call brings before its result, or for `deadline`, at which ready() is true:
  // returns when sleep() does. As in Get(), this thread may work on the call meanwhile.
  // Requires: sleep() returns when ready().
  void WaitUntil(absl::FunctionRef<bool()> ready, absl::FunctionRef<void()> sleep,
                 ResultDriver::Deadline deadline = ResultDriver::Deadline::max()) const {
    if (state_->driver != nullptr && !ready()) state_->driver->WaitUntil(ready, sleep, deadline);
    sleep();
  }

  // Like Get(), but takes the result. For results that cannot be copied.
  // Requires: no other caller asks for the result.
  absl::StatusOr<T> Take() ABSL_NO_THREAD_SAFETY_ANALYSIS {
    Get();
    return *std::move(state_->result);
  }

  // Returns a Future for the value that `of` makes from the result; an error passes through. Takes the
  // result, as Take() does. `of` runs where OnReady() would run its function.
  template <typename Of, typename U = std::decay_t<std::invoke_result_t<Of, T>>>
  Future<U> Then(Of of) ABSL_NO_THREAD_SAFETY_ANALYSIS {
    const auto follower = std::make_shared<FollowerThat<U, Of>>(std::move(of));
    follower->driver = state_->driver;
    {
      MutexLock lock(state_->mutex);
      if (!state_->result.has_value()) {
        state_->follower = follower;
        return Future<U>(follower);
      }
    }
    follower->Follow(*std::move(state_->result));
    return Future<U>(follower);
  }

  // Runs `then` once: at once if the result is there, else on the thread that sets it.
  // Requires: `then` does not block, nor take a lock that another thread holds while it waits in Get().
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
  template <typename U>
  friend class Future;
  // Another result, which is made from this one.
  class Follower {
   public:
    virtual ~Follower() = default;
    virtual void Follow(absl::StatusOr<T> result) = 0;
  };
  struct State {
    void Set(absl::StatusOr<T> value) ABSL_NO_THREAD_SAFETY_ANALYSIS {
      std::vector<std::function<void(const absl::StatusOr<T>&)>> told;
      std::shared_ptr<Follower> taker;
      {
        MutexLock lock(mutex);
        result.emplace(std::move(value));
        told.swap(then);
        taker.swap(follower);
      }
      cv.NotifyAll();
      for (auto& f : told) f(*result);
      if (taker != nullptr) taker->Follow(*std::move(result));
    }

    mutable Mutex mutex;
    CondVar cv;
    // Set once and then constant, so that a thread that has seen it set may read it without the mutex.
    std::optional<absl::StatusOr<T>> result ABSL_GUARDED_BY(mutex);
    std::vector<std::function<void(const absl::StatusOr<T>&)>> then ABSL_GUARDED_BY(mutex);
    // Takes the result after all functions of `then` have run. Null: the result stays.
    std::shared_ptr<Follower> follower ABSL_GUARDED_BY(mutex);
    std::shared_ptr<ResultDriver> driver;
  };
  // The follower and the state that it sets, in one allocation.
  template <typename U, typename Of>
  struct FollowerThat final : Follower, Future<U>::State {
    explicit FollowerThat(Of o) : of(std::move(o)) {}
    void Follow(absl::StatusOr<T> result) override {
      this->Set(result.ok() ? absl::StatusOr<U>(of(*std::move(result))) : result.status());
    }
    Of of;
  };
  explicit Future(std::shared_ptr<State> state) : state_(std::move(state)) {}
  std::shared_ptr<State> state_;
};

// The side that sets the result.
// Requires: Set() is called once.
template <typename T>
class Promise {
 public:
  // `driver`: works for a thread that waits; nullptr: the thread sleeps.
  explicit Promise(std::shared_ptr<ResultDriver> driver = nullptr)
      : state_(std::make_shared<typename Future<T>::State>()) {
    state_->driver = std::move(driver);
  }
  Future<T> future() const { return Future<T>(state_); }

  void Set(absl::StatusOr<T> result) { state_->Set(std::move(result)); }

 private:
  std::shared_ptr<typename Future<T>::State> state_;
};

}  // namespace weir
