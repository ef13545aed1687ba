#pragma once

#include <cstdint>
#include <memory>
#include <vector>

#include "absl/status/statusor.h"
#include "common/sync/mutex.h"
#include "worker/compute/compute_backend.h"

namespace weir {

// Host memory for as many floats as a model has, which a device copies to and from at full speed: where pulls
// land and pushes are sent from. It is used again and again; so once as many are there as are in use at a
// time, none is allocated.
//
// The pool outlives what it gave, as the backend outlives the pool. Take() runs on the backend's thread;
// buffers may go back on any.
class ParameterBuffers {
 public:
  ParameterBuffers(ComputeBackend* backend, int64_t elements) : backend_(backend), elements_(elements) {}

  // Also gives out this memory, which is the caller's and outlives the pool.
  void Add(float* memory);

  // Contents unspecified. Goes back when the last copy does. ResourceExhausted.
  absl::StatusOr<std::shared_ptr<float>> Take();

 private:
  ComputeBackend* const backend_;
  const int64_t elements_;
  std::vector<Buffer<float>> own_;
  Mutex mutex_;
  std::vector<float*> free_ ABSL_GUARDED_BY(mutex_);
};

}  // namespace weir
