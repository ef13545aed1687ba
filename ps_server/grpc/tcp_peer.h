#pragma once

#include <cstdint>
#include <string>

#include "absl/status/status.h"

namespace weir {

// Checks that the process at the other end of a TCP connection belongs to this user or to root, as far as
// this machine can tell.
//
// `peer` is the address of the other end as gRPC writes it ("ipv4:127.0.0.1:4711", "ipv6:%5B::1%5D:4711"),
// `port` the port of this end. PermissionDenied: the process is on this machine and belongs to another user,
// or is gone. OK: the process belongs to this user or to root, or the function cannot find the user, since
// the process is on another host or in another network namespace, or `peer` is no TCP address.
//
// Reads /proc/net/tcp and /proc/net/tcp6 for the connection's other socket. This is slow with many
// connections.
absl::Status CheckTcpPeer(const std::string& peer, uint16_t port);

// The host of such a peer (HostOf()). If `peer` is no TCP address, returns the text of `peer`.
std::string HostOfPeer(const std::string& peer);

}  // namespace weir
