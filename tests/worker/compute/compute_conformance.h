#pragma once

#include <functional>
#include <memory>

#include "worker/compute/compute_backend.h"

namespace weir {

// What every ComputeBackend must do: each operation against a plain float64 computation, over sizes around
// vector widths and no multiples of anything, with poisoned outputs and guards behind every tensor; order,
// copies and captured calls; the same bits each time. To be called from a TEST_CASE of each backend, of the
// precision that `make` gives it.
void CheckComputeBackend(const std::function<std::unique_ptr<ComputeBackend>()>& make,
                         Precision precision = Precision::kFloat32);

}  // namespace weir
