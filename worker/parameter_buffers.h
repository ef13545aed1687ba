#pragma once

#include <cstdint>
#include <memory>
#include <vector>

#include "absl/status/statusor.h"
#include "common/sync/mutex.h"
#include "worker/compute/compute_backend.h"

namespace weir {

// A pool of host memory for pulls and pushes. Each buffer holds as many floats as the model has, and a device
// copies to and from it at full speed. Buffers are reused, so once there are as many as are in use at a time,
// none is allocated.
//
// The pool outlives the buffers that it gave, and the backend outlives the pool. Take() runs on the backend's
// thread; buffers may be returned on any thread.
class ParameterBuffers {
 public:
  ParameterBuffers(ComputeBackend* backend, int64_t elements) : backend_(backend), elements_(elements) {}

  // Adds memory to give out, which is the caller's and outlives the pool.
  void Add(float* memory);

  // A buffer with unspecified contents. It returns to the pool with its last copy. ResourceExhausted: no
  // memory.
  absl::StatusOr<std::shared_ptr<float>> Take();

 private:
  ComputeBackend* const backend_;
  const int64_t elements_;
  std::vector<Buffer<float>> own_;
  Mutex mutex_;
  std::vector<float*> free_ ABSL_GUARDED_BY(mutex_);
};

}  // namespace weir
