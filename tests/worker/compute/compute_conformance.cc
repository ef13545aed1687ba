#include "tests/worker/compute/compute_conformance.h"

#include "tests/worker/compute/conformance_tensor.h"

namespace weir {

void CheckComputeBackend(const std::function<std::unique_ptr<ComputeBackend>()>& make, Precision precision) {
  using namespace conformance;
  const std::unique_ptr<ComputeBackend> backend = make();
  ComputeBackend* const b = backend.get();
  SECTION("memory and order") { CheckMemoryAndOrder(b); }
  SECTION("copies") { CheckCopies(b); }
  SECTION("capture") { CheckCapture(b); }
  SECTION("vectors") { CheckVectors(b); }
  SECTION("bfloat16") { CheckBfloat16(b); }
  SECTION("gemm") { CheckGemm(b, precision); }
  SECTION("bias") { CheckBias(b); }
  SECTION("conv2d") { CheckConv2d(b, precision); }
  SECTION("max-pool") { CheckMaxPool(b); }
  SECTION("activations") { CheckActivations(b); }
  SECTION("dropout") { CheckDropout(b); }
  SECTION("losses") { CheckLosses(b); }
  SECTION("same bits") { CheckSameBits(make); }
  CHECK(b->Wait(b->Record()).ok());
}

}  // namespace weir
