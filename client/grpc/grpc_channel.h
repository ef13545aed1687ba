#pragma once

#include <chrono>
#include <cstdint>
#include <memory>
#include <optional>
#include <string>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "common/rpc/grpc_credentials.h"
#include "grpcpp/grpcpp.h"
#include "proto/job_config.pb.h"

namespace weir {

// A channel with a connection of its own to ps:`index` ("host:port", "unix:/path"), made with the first call.
// The channel notices that its server went silent, within twice `server_wait` and at most 10 s. It reconnects
// quickly when the server is back, also at another address of the same name.
//
// `attempt`: how long an attempt to connect may take before the next one starts. If it is too short, a server
// that accepts hundreds of clients at once accepts them in vain, again and again. If it is too long, clients
// lose that time on a machine that has vanished and whose name now stands for another machine. By default
// half of `server_wait`, at most 5 s.
std::shared_ptr<grpc::Channel> MakeChannel(uint32_t index, const std::string& address,
                                           const JobCredentials& credentials,
                                           std::chrono::nanoseconds server_wait,
                                           std::optional<std::chrono::nanoseconds> attempt = std::nullopt);

// A channel as MakeChannel() makes it, for weights and gradients, as the job's WireConfig says. `bytes`: the
// most that an exchange brings. Up to kSharedBytes, the clients of one process share a connection.
// InvalidArgument, FailedPrecondition: such a channel cannot be made.
absl::StatusOr<std::shared_ptr<grpc::Channel>> MakeDataChannel(
    uint32_t index, const std::string& address, const JobCredentials& credentials,
    std::chrono::nanoseconds server_wait, std::optional<std::chrono::nanoseconds> attempt,
    const v1::WireConfig& wire, int64_t bytes);

// A message of this size is sent quickly, so no client waits long for another client's message. A server with
// fewer connections keeps their state in its caches: with 8 servers, 64 clients in 8 processes make 1.5 times
// as many pushes (docs/benchmarks/README.md). Clients with larger messages would hold each other up.
constexpr int64_t kSharedBytes = 512 << 10;

}  // namespace weir
