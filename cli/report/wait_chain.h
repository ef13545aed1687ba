#pragma once

#include <string>

#include "proto/coordinator.pb.h"

namespace weir {

// Why a cluster stands, for `weir status --why`: what waits on each server, and the chain that begins with
// the longest wait and follows from who waits to who is waited for. Ends with a line feed. A pure function.
std::string WaitChain(const v1::ClusterStatus& status);

}  // namespace weir
