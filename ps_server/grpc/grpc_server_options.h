#pragma once

#include <grpcpp/server_builder.h>

#include <chrono>

#include "proto/job_config.pb.h"

namespace weir {

// A client that is silent for this time is pinged, and its connection is closed after the same time again.
inline constexpr std::chrono::milliseconds kClientPing{10'000};

// Gives the builder of a server what does not depend on its services: the limits of a connection, and time
// limits for silent clients.
void SetServerOptions(const v1::ClientLimits& limits, grpc::ServerBuilder* builder);

}  // namespace weir
