#pragma once

#include <string>

#include "proto/coordinator.pb.h"

namespace weir {

// Describes why a cluster stands still, for `weir status --why`: the waits on each server, and the chain that
// begins with the longest wait and leads from each waiting task to the awaited task. Ends with a line feed. A
// pure function.
std::string WaitChain(const v1::ClusterStatus& status);

}  // namespace weir
