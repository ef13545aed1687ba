#pragma once

#include <string>

#include "proto/coordinator.pb.h"

namespace weir {

// Describes why a cluster stands still, for `weir status --why`: the waits on each server, and the chain that
// begins with the longest wait and leads from waiting task to awaited task. Ends with a line feed. Pure.
std::string WaitChain(const v1::ClusterStatus& status);

}  // namespace weir
