#pragma once

#include <grpcpp/server_builder.h>

#include <chrono>
#include <cstddef>

#include "proto/job_config.pb.h"

namespace weir {

// A client that is silent for this time is pinged, and its connection is closed after the same time again.
inline constexpr std::chrono::milliseconds kClientPing{10'000};

// Give the builder of a server what does not depend on its services: the limits of a connection, and time
// limits for silent clients. What has come over all connections and was not taken yet may use `memory_bytes`
// (0: any number); when that is reached gRPC ends calls.
void SetServerOptions(const v1::ClientLimits& limits, size_t memory_bytes, grpc::ServerBuilder* builder);
// The same for a server of grpc.health.v1 alone, to which everybody may connect.
void SetHealthOptions(grpc::ServerBuilder* builder);

}  // namespace weir
