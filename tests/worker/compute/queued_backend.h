#pragma once

#include <memory>

#include "worker/compute/compute_backend.h"

namespace weir {

// A stand-in for an asynchronous device: the CPU backend behind a queue that runs nothing before a wait, and
// then runs copies in the worst allowed order. Its device pointers fault when the host follows them. Code
// that works with it does not rely on unified memory, on calls being done when they return, or on copies
// being done when later calls are.
std::unique_ptr<ComputeBackend> MakeQueuedBackend();

}  // namespace weir
