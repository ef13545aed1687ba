#pragma once

#include <grpcpp/server_builder.h>
#include <grpcpp/support/channel_arguments.h>

#include <string>

#include "absl/status/status.h"
#include "common/config/address.h"

namespace weir {

// The congestion control of gRPC's TCP sockets (wire.congestion_control); Unix sockets have none. `name` is
// "auto" or one that this user may choose, else FailedPrecondition says which ones are to be had.
//
// "auto": a connection that stays on this machine gets cubic, or else reno, since others (bbr) pace what
// needs no pacing and halve it; the rest keep the system's. It rules what is sent, so each end chooses for
// itself.

// Of a channel to `server`.
absl::Status SetCongestionControl(const std::string& name, const Address& server,
                                  grpc::ChannelArguments* arguments);
// Of the connections that a server accepts.
absl::Status SetCongestionControl(const std::string& name, grpc::ServerBuilder* builder);

}  // namespace weir
