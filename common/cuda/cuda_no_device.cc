// Stands in for cuda_device.cc in a build without the toolkit.

#include "absl/strings/str_cat.h"
#include "common/cuda/cuda_device.h"

namespace weir::cuda {
namespace {

absl::Status Unavailable() {
  return absl::FailedPreconditionError(
      "this build has no CUDA: the toolkit (nvcc) was not found when it was made; install it, set CUDA_HOME "
      "and build again");
}

}  // namespace

std::string VersionString(int version) { return absl::StrCat(version / 1000, ".", version % 1000 / 10); }

int DriverVersion() { return 0; }

int RuntimeVersion() { return 0; }

absl::StatusOr<Installation> Probe() { return Unavailable(); }

absl::StatusOr<std::string> FindBlas() { return Unavailable(); }

absl::StatusOr<std::vector<int>> UsableDevices() { return Unavailable(); }

}  // namespace weir::cuda
