#pragma once

#include <cstdint>
#include <string>

#include "absl/status/statusor.h"
#include "common/system/unique_fd.h"

namespace weir {

// A non-blocking TCP socket that listens at the first available address of `host`; at "::", on all addresses
// of IPv6 and IPv4. Port 0: any free port.
// Errors say why no address is available. FailedPrecondition: it is taken, is none of this machine's, or its
// port is reserved for others. Unavailable: anything else, such as a name that does not resolve.
absl::StatusOr<UniqueFd> ListenTcp(const std::string& host, int port);
// The port to which a socket is bound; 0: it is no TCP socket.
uint16_t PortOf(const UniqueFd& socket);

// Accepts a waiting client of a listening socket, which is non-blocking; so is the client's, and
// close-on-exec. Unavailable: no client waits. ResourceExhausted: no descriptor or no memory is left for it.
absl::StatusOr<UniqueFd> AcceptClient(int listener);

}  // namespace weir
