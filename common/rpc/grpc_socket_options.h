#pragma once

#include <grpcpp/server_builder.h>
#include <grpcpp/support/channel_arguments.h>

#include <string>

#include "absl/status/status.h"
#include "common/config/address.h"

namespace weir {

// What gRPC's sockets are set to so that they send fast. Each end sets its own.
//
// TCP: the congestion control (wire.congestion_control). It is "auto" or one that this user may choose, else
// FailedPrecondition names those that the system has. "auto": a connection that stays on this machine gets
// cubic, or else reno, since others (bbr) pace what needs no pacing and halve it; the rest keep the system's.
//
// Unix: as much memory for what is sent as the system lets this user have (net.core.wmem_max), up to 4 MiB.
// TCP grows it by itself; a Unix socket stays at 208 KiB, which halves its speed.

// Of a channel to `server`.
absl::Status SetSocketOptions(const std::string& congestion_control, const Address& server,
                              grpc::ChannelArguments* arguments);
// Of the TCP connections that a server accepts.
absl::Status SetSocketOptions(const std::string& congestion_control, grpc::ServerBuilder* builder);
// Of a Unix socket that is handed to gRPC.
void SetUnixSocketOptions(int fd);

}  // namespace weir
