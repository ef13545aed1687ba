#pragma once

#include <cstddef>
#include <vector>

#include "absl/functional/function_ref.h"
#include "absl/status/status.h"
#include "common/sync/mutex.h"

namespace weir {

// Lets a forward pass begin before all of its weights are there: a pull tells of each tensor as it arrives
// (OnWeights in client/client.h) and of its end, and whoever computes waits for those that the next layer
// reads. One gate for one pull.
//
// Thread-safe. What was written before Arrived() and Ended() is seen behind Await().
class WeightsGate {
 public:
  explicit WeightsGate(size_t tensors) : arrived_(tensors, false) {}

  void Arrived(size_t tensor);
  // The pull is over; OK: all tensors are there. Only the first call counts.
  void Ended(const absl::Status& status);

  // Returns when the tensors [first, end) are there, or the pull's error once it has one; so it waits for no
  // longer than the pull does. `wait` is how to wait: it calls `sleep` at the end, and may do
  // some work before, until `ready`.
  using Wait = absl::FunctionRef<void(absl::FunctionRef<bool()> ready, absl::FunctionRef<void()> sleep)>;
  absl::Status Await(size_t first, size_t end, Wait wait);

 private:
  bool Decided(size_t first, size_t end) const ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);

  Mutex mutex_;
  CondVar news_;
  std::vector<bool> arrived_ ABSL_GUARDED_BY(mutex_);
  bool ended_ ABSL_GUARDED_BY(mutex_) = false;
  absl::Status status_ ABSL_GUARDED_BY(mutex_);
};

}  // namespace weir
