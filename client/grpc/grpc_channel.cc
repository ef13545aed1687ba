#include "client/grpc/grpc_channel.h"

#include <algorithm>

#include "common/base/status_macros.h"
#include "common/config/address.h"
#include "common/net/local_socket.h"
#include "common/protocol/limits.h"
#include "common/rpc/grpc_socket_options.h"
#include "common/telemetry/logging.h"

namespace weir {
namespace {

// Room beside a message of the largest size, for the frame.
constexpr int kFrameBytes = 64 << 10;

constexpr int kResolveAgainMs = 500;

// How long finding the Unix socket of a server on this host may take.
constexpr std::chrono::milliseconds kLocalLimit{500};

// The most that one attempt to connect may take by default.
constexpr std::chrono::nanoseconds kMostOfAttempt = std::chrono::seconds(5);

// A connection is pinged after this much silence, and ends if for as long again nothing is acknowledged. Not
// the whole time for which a server is waited for: this time must do for finding the server elsewhere.
constexpr std::chrono::nanoseconds kMostSilence = std::chrono::seconds(5);

int Milliseconds(std::chrono::nanoseconds time) {
  return static_cast<int>(std::chrono::duration_cast<std::chrono::milliseconds>(time).count());
}

grpc::ChannelArguments Arguments(std::chrono::nanoseconds server_wait,
                                 std::optional<std::chrono::nanoseconds> attempt, bool shared) {
  const int wait_ms = Milliseconds(server_wait);
  const int attempt_ms = Milliseconds(attempt.value_or(std::min(server_wait / 2, kMostOfAttempt)));
  grpc::ChannelArguments arguments;
  // Channels with the same arguments to the same address share a connection of gRPC's common pool.
  arguments.SetInt(GRPC_ARG_USE_LOCAL_SUBCHANNEL_POOL, shared ? 0 : 1);
  arguments.SetInt(GRPC_ARG_ENABLE_HTTP_PROXY, 0);
  arguments.SetMaxReceiveMessageSize(kMaxMessageBytes + kFrameBytes);
  // Our own retries know the keys; gRPC's retries would keep copies of what was sent.
  arguments.SetInt(GRPC_ARG_ENABLE_RETRIES, 0);
  // Several tries fit into the time after which a server is given up. The minimum limits how long one attempt
  // to connect takes; it is no pause. gRPC itself allows nothing below 100 ms.
  arguments.SetInt(GRPC_ARG_INITIAL_RECONNECT_BACKOFF_MS, 100);
  arguments.SetInt(GRPC_ARG_MIN_RECONNECT_BACKOFF_MS, std::max(attempt_ms, 100));
  arguments.SetInt(GRPC_ARG_MAX_RECONNECT_BACKOFF_MS, std::clamp(wait_ms / 2, 100, 1000));
  // A name that stands for another machine now must be resolved again as quickly; by default gRPC resolves a
  // name twice a minute.
  arguments.SetInt(GRPC_ARG_DNS_MIN_TIME_BETWEEN_RESOLUTIONS_MS, kResolveAgainMs);
  // A machine that vanished sends no reset. A server would take more frequent pings for abuse.
  const int silence_ms = std::max(Milliseconds(std::min(server_wait, kMostSilence)), 1000);
  arguments.SetInt(GRPC_ARG_KEEPALIVE_TIME_MS, silence_ms);
  arguments.SetInt(GRPC_ARG_KEEPALIVE_TIMEOUT_MS, silence_ms);
  return arguments;
}

}  // namespace

std::shared_ptr<grpc::Channel> MakeChannel(uint32_t index, const std::string& address,
                                           const JobCredentials& credentials,
                                           std::chrono::nanoseconds server_wait,
                                           std::optional<std::chrono::nanoseconds> attempt) {
  return grpc::CreateCustomChannel(address, credentials.ToServer(index, address),
                                   Arguments(server_wait, attempt, /*shared=*/false));
}

absl::StatusOr<std::shared_ptr<grpc::Channel>> MakeDataChannel(
    uint32_t index, const std::string& address, const JobCredentials& credentials,
    std::chrono::nanoseconds server_wait, std::optional<std::chrono::nanoseconds> attempt,
    const v1::WireConfig& wire, int64_t bytes) {
  WEIR_ASSIGN_OR_RETURN(const Address server, ParseAddress(address));
  grpc::ChannelArguments arguments = Arguments(server_wait, attempt, bytes <= kSharedBytes);
  WEIR_RETURN_IF_ERROR(SetSocketOptions(wire.congestion_control(), server, &arguments));
  std::string target = address;
  if (wire.transport() != v1::WireConfig::TRANSPORT_TCP && IsThisHost(server)) {
    const absl::StatusOr<std::string> local =
        LocalGrpcTarget(server, std::chrono::steady_clock::now() + kLocalLimit);
    if (local.ok()) {
      target = *local;
    } else if (wire.transport() == v1::WireConfig::TRANSPORT_UNIX) {
      LogWarning("no Unix socket of ", address, ", TCP instead: ", std::string(local.status().message()));
    }
  }
  return grpc::CreateCustomChannel(target, credentials.ToServer(index, target), arguments);
}

}  // namespace weir
