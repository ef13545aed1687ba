#pragma once

#include "absl/status/statusor.h"
#include "common/system/unique_fd.h"

namespace weir {

// Accepts a waiting client of a listening socket, which is non-blocking; so is the client's, and
// close-on-exec. Unavailable: no client waits. ResourceExhausted: no descriptor or no memory is left for it.
absl::StatusOr<UniqueFd> AcceptClient(int listener);

}  // namespace weir
