#pragma once

#include <grpcpp/server_builder.h>

#include "absl/status/status.h"
#include "proto/job_config.pb.h"
#include "ps_server/grpc/connection_limits.h"

namespace weir {

// Gives the builder of a server what does not depend on its services: limits of connections and messages,
// time limits for silent clients, the options of sockets. `connections` outlives the server.
// FailedPrecondition: the system does not have wire.congestion_control.
absl::Status SetServerOptions(const v1::JobConfig& config, ConnectionLimits* connections,
                              grpc::ServerBuilder* builder);

}  // namespace weir
