#include "worker/compute/compute_backend.h"

#include "absl/strings/str_cat.h"
#include "worker/compute/cpu_backend.h"

namespace weir {

absl::StatusOr<std::unique_ptr<ComputeBackend>> MakeComputeBackend(absl::string_view device, int threads) {
  if (threads < 1) {
    return absl::InvalidArgumentError(
        absl::StrCat("compute.threads is ", threads, "; it must be at least 1"));
  }
  if (device == "cpu") return MakeCpuBackend(threads);
  return absl::InvalidArgumentError(
      absl::StrCat("compute device '", device, "' is not in this build; it has 'cpu'"));
}

}  // namespace weir
