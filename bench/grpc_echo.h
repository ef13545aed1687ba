#pragma once

#include "bench/contestant.h"

namespace weir::bench {

// The limit that gRPC sets for small messages: one long-lived stream, on which every message comes back
// unchanged. Byte buffers and completion queues on both sides, with one thread each.
absl::StatusOr<std::unique_ptr<StepServer>> StartEchoServer(const std::string& host);
absl::StatusOr<std::unique_ptr<StepClient>> ConnectEchoClient(const Contestant& contestant,
                                                              const std::string& address);

}  // namespace weir::bench
