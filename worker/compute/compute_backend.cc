#include "worker/compute/compute_backend.h"

#include <optional>
#include <utility>

#include "absl/strings/str_cat.h"
#include "common/config/written_text.h"
#include "common/cuda/cuda_device.h"

namespace weir {
namespace {

// For backends whose calls cost nothing besides their work.
struct CapturedCalls final : ComputeBackend::Captured {
  explicit CapturedCalls(std::function<void()> c) : calls(std::move(c)) {}
  const std::function<void()> calls;
};

}  // namespace

absl::StatusOr<std::unique_ptr<ComputeBackend::Captured>> ComputeBackend::Capture(
    std::function<void()> calls) {
  return std::make_unique<CapturedCalls>(std::move(calls));
}

void ComputeBackend::Replay(Captured* captured) { static_cast<CapturedCalls*>(captured)->calls(); }

absl::string_view PrecisionName(Precision precision) {
  switch (precision) {
    case Precision::kTf32:
      return "tf32";
    case Precision::kBfloat16:
      return "bf16";
    case Precision::kFloat32:
      break;
  }
  return "float32";
}

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

#ifndef WEIR_CUDA  // a build without the toolkit
absl::StatusOr<std::unique_ptr<ComputeBackend>> cuda::MakeBackend(int device, Precision, size_t) {
  return absl::FailedPreconditionError(
      absl::StrCat("compute device 'cuda:", device, "' cannot be used: ", Probe().status().message()));
}
#endif

}  // namespace weir
