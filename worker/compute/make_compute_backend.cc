#include <cstdint>

#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/strip.h"
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
  absl::string_view number = options.device;
  uint32_t index = 0;
  if (absl::ConsumePrefix(&number, "cuda:") && absl::SimpleAtoi(number, &index) && index < 1024 &&
      absl::StrCat(index) == number) {
    return cuda::MakeBackend(static_cast<int>(index), options.precision);
  }
  return absl::InvalidArgumentError(absl::StrCat(
      "compute device '", options.device, "' is not known; there are 'cpu' and 'cuda:N', N = 0, 1, ..."));
}

}  // namespace weir
