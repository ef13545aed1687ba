#include <optional>

#include "absl/strings/str_cat.h"
#include "common/config/written_text.h"
#include "worker/compute/compute_backend.h"
#include "worker/compute/cpu_backend.h"
#include "worker/compute/cuda_backend.h"

namespace weir {

absl::StatusOr<std::unique_ptr<ComputeBackend>> MakeComputeBackend(const ComputeOptions& options) {
  if (options.threads < 1) {
    return absl::InvalidArgumentError(
        absl::StrCat("compute.threads is ", options.threads, "; it must be at least 1"));
  }
  if (options.device == "cpu") {
    if (options.precision != Precision::kFloat32) {
      return absl::InvalidArgumentError(absl::StrCat(
          "compute.precision is ", PrecisionName(options.precision),
          ", but the device 'cpu' computes in float32 alone; take it out or choose a GPU (--device=cuda:N)"));
    }
    return MakeCpuBackend(options.threads);
  }
  if (const std::optional<int> index = CudaIndex(options.device); index.has_value()) {
    return cuda::MakeBackend(*index, options.precision);
  }
  return absl::InvalidArgumentError(absl::StrCat(
      "compute device '", options.device, "' is not known; there are 'cpu' and 'cuda:N', N = 0, 1, ..."));
}

}  // namespace weir
