#pragma once

#include <atomic>
#include <chrono>
#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <utility>
#include <variant>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "client/types.h"
#include "common/model/model_spec.h"
#include "common/threads/future.h"
#include "common/threads/mutex.h"
#include "proto/job_config.pb.h"
#include "python/capi/weir_c.h"

// The handles of weir_c.h that several files share, and the errors of its functions.

struct weir_job {
  weir::v1::JobConfig config;
  std::string json;
};

namespace weir {

class Member;

// The result of a function of weir_c.h that ended with `status`: NULL if `status` is OK.
weir_error* ErrorOf(const absl::Status& status);

// Whether this process was forked from the one that loaded the library. Then threads and connections are the
// parent's, so that nothing may be called or destroyed here.
bool Forked();
absl::Status ForkedError();

// Errors: InvalidArgument: an unknown initializer, or a model that ModelSpec::Validate() refuses.
absl::StatusOr<ModelSpec> ModelOf(const weir_tensor* tensors, size_t n);

// The result of a call that a weir_future stands for.
//
// Requires: Set() is called once.
//
// Thread safety: all functions are thread-safe.
class Pending {
 public:
  using Deadline = std::chrono::steady_clock::time_point;
  // monostate: of a call without a result.
  using Result =
      std::variant<std::monostate, std::shared_ptr<Member>, std::optional<Work>, ExchangeResult, bool>;
  // Waits for the result, at most until the deadline; nullopt: it is not there yet.
  using Wait = std::function<std::optional<absl::StatusOr<Result>>(Deadline)>;

  void Set(absl::StatusOr<Result> result) {
    MutexLock lock(mutex_);
    result_ = std::move(result);
    is_set_ = true;
    set_.NotifyAll();
  }

  // The result comes by `wait`, which the threads in WaitUntil() call, one at a time. Called instead of
  // Set().
  // Requires: no thread has called WaitUntil().
  void SetBy(Wait wait) { wait_ = std::move(wait); }

  // A thread in WaitUntil() works on this call, whose end calls Set().
  // Requires: no thread has called WaitUntil().
  void WorkOn(Future<bool> call) { call_.emplace(std::move(call)); }

  // Whether the result is there, at the latest at the deadline.
  bool WaitUntil(Deadline deadline) {
    if (wait_ != nullptr) return WaitBy(deadline);
    const auto over = [this, deadline] { return is_set_ || std::chrono::steady_clock::now() >= deadline; };
    const auto sleep = [this, over, deadline] {
      MutexLock lock(mutex_);
      while (!over()) set_.WaitUntil(mutex_, deadline);
    };
    if (call_.has_value()) {
      call_->WaitUntil(over, sleep, deadline);
    } else {
      sleep();
    }
    return is_set_;
  }

  // Takes the result, once.
  // Errors: FailedPrecondition: the result is not there yet, or was taken; or Forked(). Else the call's
  // error.
  template <typename T>
  absl::StatusOr<T> Take() {
    if (Forked()) return ForkedError();
    MutexLock lock(mutex_);
    if (!result_.has_value())
      return absl::FailedPreconditionError("the call has not ended; weir_wait() for it");
    if (!result_->ok()) return result_->status();
    T* const value = std::get_if<T>(&**result_);
    if (value == nullptr) return absl::FailedPreconditionError("this is the result of another kind of call");
    return std::move(*value);
  }

 private:
  bool WaitBy(Deadline deadline) {
    MutexLock lock(mutex_);
    while (!is_set_ && waits_) {
      if (!set_.WaitUntil(mutex_, deadline) && std::chrono::steady_clock::now() >= deadline) return is_set_;
    }
    if (is_set_) return true;
    waits_ = true;
    mutex_.Unlock();
    std::optional<absl::StatusOr<Result>> found = wait_(deadline);
    mutex_.Lock();
    waits_ = false;
    if (found.has_value()) {
      result_ = *std::move(found);
      is_set_ = true;
    }
    set_.NotifyAll();
    return is_set_;
  }

  Wait wait_;
  std::optional<Future<bool>> call_;
  Mutex mutex_;
  CondVar set_;
  // Written under the mutex.
  std::atomic<bool> is_set_ = false;
  // A thread is in `wait_`.
  bool waits_ ABSL_GUARDED_BY(mutex_) = false;
  std::optional<absl::StatusOr<Result>> result_ ABSL_GUARDED_BY(mutex_);
};

}  // namespace weir

struct weir_future {
  std::shared_ptr<weir::Pending> pending = std::make_shared<weir::Pending>();
};

// Weights that a pull has brought: into the caller's tensors, or in place.
struct weir_weights {
  const weir::PullResult& pull() const { return in_place ? result.weights.pull() : result.pull; }

  weir::ExchangeResult result;
  bool in_place = false;
};
