#pragma once

#include <sys/socket.h>

#include <string>
#include <vector>

#include "common/config/address.h"

namespace weir {

// Returns whether `address` can be reached without leaving this machine: a Unix socket, a loopback address,
// or an address of an interface of this network namespace. A name counts by what it resolves to; a name that
// does not resolve at once is elsewhere (ResolveSoon()).
bool IsThisHost(const Address& address);
// Returns whether a socket's end can be reached without leaving this machine.
bool IsThisHost(const sockaddr_storage& end);

// The services that a server on this machine offers beside the socket that it is bound to, each on an
// abstract Unix socket.
enum class LocalService {
  kGrpc,      // SOCK_STREAM: the same gRPC services
  kSegments,  // SOCK_SEQPACKET: shared memory (common/protocol/segment_messages.h)
};

// The names of these sockets, without the leading zero byte, are derived from the address. For a TCP address
// they are derived from port and IP ("weir-grpc-2222-127.0.0.1"; a server on all interfaces has
// "weir-grpc-2222-any"), for a Unix socket from the device and inode of its file. Abstract names belong to a
// network namespace, as ports do: a server behind a forwarded port is not found, and two servers with the
// same port on different interfaces have different names.
//
// For a server that is bound to `bound` (its port known, its file there): the names to listen on.
std::vector<std::string> NamesToListenOn(LocalService service, const Address& bound);
// For a client that reaches the server under `address`: the names to try, in this order.
std::vector<std::string> NamesToTry(LocalService service, const Address& address);

}  // namespace weir
