#pragma once

#include <functional>
#include <memory>

#include "worker/compute/compute_backend.h"

namespace weir {

// The contract of every ComputeBackend: each operation against a plain float64 computation, over sizes around
// vector widths and odd sizes, with poisoned outputs and guards behind every tensor. Also order, copies and
// captured calls, and the same bits each time. Called from a TEST_CASE of each backend. `make` gives a
// backend of this precision.
void CheckComputeBackend(const std::function<std::unique_ptr<ComputeBackend>()>& make,
                         Precision precision = Precision::kFloat32);

}  // namespace weir
