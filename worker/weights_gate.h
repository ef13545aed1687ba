#pragma once

#include <cstddef>
#include <vector>

#include "absl/functional/function_ref.h"
#include "absl/status/status.h"
#include "common/sync/mutex.h"

namespace weir {

// Lets a forward pass begin before all of its weights are there. A pull reports each tensor as it arrives
// (OnWeights in client/client.h) and its own end; the computing thread waits for the tensors that the next
// layer reads. A gate serves one pull.
//
// Thread-safe. All that was written before Arrived() and Ended() is visible after Await().
class WeightsGate {
 public:
  explicit WeightsGate(size_t tensors) : arrived_(tensors, false) {}

  void Arrived(size_t tensor);
  // The pull is over; OK: all tensors are there. Only the first call counts.
  void Ended(const absl::Status& status);

  // Returns when the tensors [first, end) are there, or with the pull's error once it has one; so this waits
  // no longer than the pull does. `wait` says how to wait: it calls `sleep` at the end, and may do some work
  // before, until `ready`.
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
