#pragma once

#include <sys/socket.h>

#include <chrono>
#include <cstddef>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "common/config/address.h"
#include "common/system/unique_fd.h"

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

// Abstract Unix sockets of these names, and messages over them. All sockets are close-on-exec and
// non-blocking.

// Listens under this name. `type`: SOCK_STREAM or SOCK_SEQPACKET. AlreadyExists: another process does.
absl::StatusOr<UniqueFd> ListenLocal(const std::string& name, int type);
// Listens under all NamesToListenOn(). FailedPrecondition: there is none; else as above.
absl::StatusOr<std::vector<UniqueFd>> ListenLocal(LocalService service, const Address& bound);
// PermissionDenied: the process at the other end belongs neither to this user nor to root.
absl::Status CheckPeer(int socket);

// Connects to the first of NamesToTry() that answers. An abstract name has no file permissions, and any user
// may listen on it while its server is away, so this checks the peer. PermissionDenied: CheckPeer() failed.
// NotFound: no process listens.
absl::StatusOr<UniqueFd> ConnectLocal(LocalService service, const Address& server,
                                      std::chrono::steady_clock::time_point deadline);

// Where gRPC reaches the server at this address over a Unix socket: "unix:/path" itself, or
// "unix-abstract:NAME" if a process that may be trusted listens there now. NotFound: no process does, because
// the server is on another machine, in another network namespace, or not up yet.
absl::StatusOr<std::string> LocalGrpcTarget(const Address& server,
                                            std::chrono::steady_clock::time_point deadline);

// Messages of a fixed length, each with at most one descriptor, over SOCK_SEQPACKET.
//
// SendMessage() never waits. Unavailable: the peer has not read what was sent before. Aborted: the peer is
// gone.
absl::Status SendMessage(int socket, const void* message, size_t bytes, int descriptor = -1);
// Returns the descriptor, if one came. Waits until `deadline` at most. Unavailable: nothing came. Aborted:
// the peer is gone. InvalidArgument: a message of another length, or several descriptors, which have been
// closed.
absl::StatusOr<UniqueFd> ReceiveMessage(int socket, void* message, size_t bytes,
                                        std::chrono::steady_clock::time_point deadline = {});

}  // namespace weir
