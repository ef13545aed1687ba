#pragma once

#include <chrono>
#include <memory>
#include <optional>
#include <utility>
#include <variant>

#include "absl/status/statusor.h"
#include "client/types.h"
#include "common/sync/mutex.h"
#include "python/capi/weir_c.h"

namespace weir {

// The result of a call that a weir_future stands for. Set() is called once. Thread-safe.
class Pending {
 public:
  // monostate: of a call without a result.
  using Result = std::variant<std::monostate, std::optional<Work>, ExchangeResult>;

  void Set(absl::StatusOr<Result> result) {
    MutexLock lock(mutex_);
    result_ = std::move(result);
    set_.NotifyAll();
  }

  // Whether the result is there, at the latest at the deadline.
  bool WaitUntil(std::chrono::steady_clock::time_point deadline) {
    MutexLock lock(mutex_);
    while (!result_.has_value()) {
      if (!set_.WaitUntil(mutex_, deadline)) return result_.has_value();
    }
    return true;
  }

  // The result, once. FailedPrecondition: it is not there yet, or was taken.
  template <typename T>
  absl::StatusOr<T> Take() {
    MutexLock lock(mutex_);
    if (!result_.has_value())
      return absl::FailedPreconditionError("the call has not ended; weir_wait() for it");
    if (!result_->ok()) return result_->status();
    T* const value = std::get_if<T>(&**result_);
    if (value == nullptr) return absl::FailedPreconditionError("this is the result of another kind of call");
    return std::move(*value);
  }

 private:
  Mutex mutex_;
  CondVar set_;
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
