#pragma once

#include <cstdint>
#include <string>

#include "absl/status/status.h"
#include "common/rpc/tls.h"

namespace weir {

// Why connections to ps:`server` at `address` cannot succeed because of TLS: gRPC itself says little more
// than that a connection was closed. Makes a connection of its own, and takes at most a few seconds.
//
// FailedPrecondition: this process has TLS (`tls`) and what listens there has not, or the reverse; or one end
// does not accept the other's certificate, or its version of TLS. OK: nothing is known to be wrong, perhaps
// because nothing listens.
absl::Status ProbeTls(const std::string& address, uint32_t server, const Tls* tls);

}  // namespace weir
