#pragma once

#include <grpcpp/server_builder.h>
#include <grpcpp/support/channel_arguments.h>

#include <functional>
#include <string>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "common/config/address.h"

namespace weir {

// Options that make gRPC's sockets send fast. Each end sets its own.
//
// TCP: the congestion control (wire.congestion_control). It is "auto" or a control that this user may choose;
// else FailedPrecondition names the system's controls. With "auto" a connection that stays on this machine
// gets cubic, or else reno, since others, such as bbr, pace packets that need no pacing, which halves the
// speed. Other connections keep the system's control.
//
// Unix: a send buffer as large as the system allows this user (net.core.wmem_max), up to 4 MiB. TCP grows its
// buffer by itself; a Unix socket's stays at 208 KiB, which halves its speed.

// gRPC's functions for this have no stable ABI. With a gRPC of a version that is not known to fit, a client's
// sockets, and a server's at a Unix address, keep the system's options, and a warning says so.

// Whether the ABI is that of this version: "1.51.1".
bool KnowsSocketsOf(absl::string_view grpc_version);

// For a channel to `server`.
absl::Status SetSocketOptions(const std::string& congestion_control, const Address& server,
                              grpc::ChannelArguments* arguments);
// Returns the function to call for each TCP socket that a server accepts, on any thread.
absl::StatusOr<std::function<void(int fd)>> OptionsOfAccepted(const std::string& congestion_control);
// For the Unix sockets that a server accepts, and for one that is handed to it.
void SetUnixSocketOptions(grpc::ServerBuilder* builder);
void SetUnixSocketOptions(int fd);

}  // namespace weir
