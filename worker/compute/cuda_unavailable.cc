// Stands in for the CUDA backend in a build without the toolkit.

#include "absl/status/status.h"
#include "absl/strings/str_cat.h"
#include "worker/compute/cuda_backend.h"
#include "worker/compute/cuda_device.h"

namespace weir::cuda {
namespace {

absl::Status Unavailable() {
  return absl::FailedPreconditionError(
      "this build has no CUDA: the toolkit (nvcc) was not found when it was made; install it, set CUDA_HOME "
      "and build again");
}

}  // namespace

std::string VersionString(int version) { return absl::StrCat(version / 1000, ".", version % 1000 / 10); }

absl::StatusOr<Installation> Probe() { return Unavailable(); }

absl::StatusOr<std::string> FindBlas() { return Unavailable(); }

absl::StatusOr<std::unique_ptr<ComputeBackend>> MakeBackend(int device, Precision, size_t) {
  return absl::FailedPreconditionError(
      absl::StrCat("compute device 'cuda:", device, "' cannot be used: ", Unavailable().message()));
}

}  // namespace weir::cuda
