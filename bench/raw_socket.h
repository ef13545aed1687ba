#pragma once

#include "bench/contestant.h"

namespace weir::bench {

// The limit that sockets set: a plain loop of send and recv with the same apply, and nothing else: no
// protocol, no checks, no versions that a reader could hold, no recovery.
absl::StatusOr<std::unique_ptr<StepServer>> StartRawServer(const Contestant& contestant, int index,
                                                           const std::string& host);
absl::StatusOr<std::unique_ptr<StepClient>> ConnectRawClient(const Contestant& contestant, int index,
                                                             const std::vector<std::string>& addresses);

}  // namespace weir::bench
