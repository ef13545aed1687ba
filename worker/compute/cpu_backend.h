#pragma once

#include <memory>

#include "worker/compute/compute_backend.h"

namespace weir {

// Matrix products by OpenBLAS with `threads` threads (a setting of the whole process), the rest by loops on
// the calling thread. Every call is done when it returns. ResourceExhausted: OpenBLAS would not find the
// memory that it needs.
absl::StatusOr<std::unique_ptr<ComputeBackend>> MakeCpuBackend(int threads);

}  // namespace weir
