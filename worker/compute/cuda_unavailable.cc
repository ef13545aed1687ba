// Stands in for the CUDA backend in a build without the toolkit.

#include "absl/status/status.h"
#include "absl/strings/str_cat.h"
#include "common/cuda/cuda_device.h"
#include "worker/compute/cuda_backend.h"

namespace weir::cuda {

absl::StatusOr<std::unique_ptr<ComputeBackend>> MakeBackend(int device, Precision, size_t) {
  return absl::FailedPreconditionError(
      absl::StrCat("compute device 'cuda:", device, "' cannot be used: ", Probe().status().message()));
}

}  // namespace weir::cuda
