#pragma once

#include <chrono>
#include <cstddef>
#include <string>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "common/config/address.h"
#include "common/net/local_host.h"
#include "common/system/unique_fd.h"

namespace weir {

// Abstract Unix sockets (common/net/local_host.h names them), and messages over them. All sockets are
// close-on-exec and non-blocking.

// Listens under this name. `type`: SOCK_STREAM or SOCK_SEQPACKET. AlreadyExists: another process does.
absl::StatusOr<UniqueFd> ListenLocal(const std::string& name, int type);
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
