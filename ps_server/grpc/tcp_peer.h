#pragma once

#include <cstdint>
#include <string>

#include "absl/status/status.h"

namespace weir {

// Whether the process at the other end of a TCP connection may be told from those of other users, and is one
// of this user or of root.
//
// `peer` is the address of that end as gRPC writes it ("ipv4:127.0.0.1:4711", "ipv6:%5B::1%5D:4711"), `port`
// that of this end. PermissionDenied: it is a process of this machine, and another user's, or one that is
// gone. OK: it is ours, or nobody can tell, as for one on another host or in another network namespace, or
// where `peer` is no TCP address.
//
// By what /proc/net/tcp and tcp6 say about the connection's other socket. Reads them, which takes a while
// where connections are many.
absl::Status CheckTcpPeer(const std::string& peer, uint16_t port);

}  // namespace weir
