#pragma once

#include <chrono>
#include <memory>
#include <string>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "grpcpp/grpcpp.h"
#include "proto/job_config.pb.h"

namespace weir {

// A connection of its own to a server ("host:port", "unix:/path"), made with the first call, that notices
// within about `server_wait` that its server went silent and comes back quickly when the server does.
std::shared_ptr<grpc::Channel> MakeChannel(const std::string& address, std::chrono::nanoseconds server_wait);

// The same, for weights and gradients, as the job's WireConfig says. InvalidArgument, FailedPrecondition:
// that cannot be done.
absl::StatusOr<std::shared_ptr<grpc::Channel>> MakeDataChannel(const std::string& address,
                                                               std::chrono::nanoseconds server_wait,
                                                               const v1::WireConfig& wire);

// The same code and message.
absl::Status FromGrpc(const grpc::Status& status);

}  // namespace weir
