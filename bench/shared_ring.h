#pragma once

#include "bench/contestant.h"

namespace weir::bench {

// The limit that memory sets: the worker copies its gradient into the slots of a ring in shared memory. The
// server applies it from there to weights in shared memory, which the worker copies into its tensor. One
// server, one client, one thread each; nothing keeps either side's data from the other.
absl::StatusOr<std::unique_ptr<StepServer>> StartRingServer(const Contestant& contestant);
absl::StatusOr<std::unique_ptr<StepClient>> ConnectRingClient(const Contestant& contestant,
                                                              const std::string& address);

}  // namespace weir::bench
