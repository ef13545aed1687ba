#pragma once

#include <grpcpp/server_builder.h>

#include <chrono>
#include <cstddef>

#include "proto/job_config.pb.h"

namespace weir {

// A client that is silent for this time is pinged, and its connection is closed after the same time again.
inline constexpr std::chrono::milliseconds kClientPing{10'000};

// Give the builder of a server the options that do not depend on its services: the limits of a connection,
// and time limits for silent clients. `memory_bytes` (0: any number) limits the bytes that have come over all
// connections and were not taken yet. When the limit is reached, gRPC ends calls.
void SetServerOptions(const v1::ClientLimits& limits, size_t memory_bytes, grpc::ServerBuilder* builder);
// The options for a server of grpc.health.v1 alone, to which everybody may connect.
void SetHealthOptions(grpc::ServerBuilder* builder);

}  // namespace weir
