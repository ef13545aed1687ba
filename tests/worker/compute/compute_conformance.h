#pragma once

#include <functional>
#include <memory>

#include "worker/compute/compute_backend.h"

namespace weir {

// What every ComputeBackend must do: each operation against a plain float64 computation, over sizes around
// vector widths, with poisoned outputs and guards behind every tensor. To be called from a TEST_CASE of each
// backend.
void CheckComputeBackend(const std::function<std::unique_ptr<ComputeBackend>()>& make);

}  // namespace weir
