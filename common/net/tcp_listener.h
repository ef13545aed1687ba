#pragma once

#include <string>

#include "absl/status/statusor.h"
#include "common/system/unique_fd.h"

namespace weir {

// A TCP socket that listens at the first of the addresses that `host` stands for which can be had, without
// blocking. Port 0: any free one.
// Errors say why the address cannot be had. FailedPrecondition: it is taken, is none of this machine's, or
// its port is reserved for others. Unavailable: anything else, such as a name that does not resolve.
absl::StatusOr<UniqueFd> ListenTcp(const std::string& host, int port);

}  // namespace weir
