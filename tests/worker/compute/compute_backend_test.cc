#include "worker/compute/compute_backend.h"

#include <cstdio>

#include "catch2/catch.hpp"
#include "common/cuda/cuda_device.h"
#include "tests/skip.h"
#include "tests/worker/compute/compute_conformance.h"
#include "tests/worker/compute/queued_backend.h"

namespace weir {
namespace {

TEST_CASE("The CPU backend conforms") {
  CheckComputeBackend([] { return *MakeComputeBackend({"cpu"}); });
}

TEST_CASE("A device with memory and time of its own fits the interface") {
  CheckComputeBackend(MakeQueuedBackend);
}

void CheckCuda(Precision precision) {
  ComputeOptions options;
  options.device = "cuda:0";
  options.precision = precision;
  const auto backend = MakeComputeBackend(options);
  if (!backend.ok()) {
    // If CUDA reports a device, the backend has to work.
    CHECK_FALSE(cuda::Probe().ok());
    SaySkipped(backend.status().message());
    return;
  }
  CheckComputeBackend([&] { return *MakeComputeBackend(options); }, precision);
}

TEST_CASE("The CUDA backend conforms in float32") { CheckCuda(Precision::kFloat32); }
TEST_CASE("The CUDA backend conforms in tf32") { CheckCuda(Precision::kTf32); }
TEST_CASE("The CUDA backend conforms in bfloat16") { CheckCuda(Precision::kBfloat16); }

TEST_CASE("cuBLAS has what is asked of it, device or not") {
  const auto version = cuda::FindBlas();
  if (!version.ok()) {
    CHECK(version.status().code() == absl::StatusCode::kFailedPrecondition);
    SaySkipped(version.status().message());
    return;
  }
  CHECK(version->find("13.") == 0);
}

TEST_CASE("A backend that is not there is refused by name") {
  for (const char* device : {"tpu", "cuda", "cuda:", "cuda:-1", "cuda:x", "cuda:01", "CPU", ""}) {
    CHECK(MakeComputeBackend({device}).status() ==
          absl::InvalidArgumentError("compute device '" + std::string(device) +
                                     "' is not known; there are 'cpu' and 'cuda:N', N = 0, 1, ..."));
  }
  CHECK(MakeComputeBackend({"cpu", 0}).status().message() == "compute.threads is 0; it must be at least 1");
  ComputeOptions options;
  options.precision = Precision::kTf32;
  CHECK(MakeComputeBackend(options).status() ==
        absl::InvalidArgumentError("compute.precision is tf32, but the device 'cpu' computes in float32 "
                                   "alone; take it out or choose a GPU (--device=cuda:N)"));
}

}  // namespace
}  // namespace weir
