#pragma once

#include <string>

#include "proto/coordinator.pb.h"

namespace weir {

// Why a cluster stands still, for `weir status --why`: what waits on each server, and the chain that begins
// with the longest wait and goes from each waiting task to the awaited one. Ends with a line feed. A pure
// function.
std::string WaitChain(const v1::ClusterStatus& status);

}  // namespace weir
