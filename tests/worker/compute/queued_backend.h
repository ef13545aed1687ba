#pragma once

#include <memory>

#include "worker/compute/compute_backend.h"

namespace weir {

// A stand-in for an asynchronous device: the CPU backend behind a queue that runs nothing before it is waited
// for, and then runs copies in the worst order allowed, with device pointers that fault when the host follows
// them. What works with it does not lean on unified memory, on calls being done when they return, or on
// copies being done when later calls are.
std::unique_ptr<ComputeBackend> MakeQueuedBackend();

}  // namespace weir
