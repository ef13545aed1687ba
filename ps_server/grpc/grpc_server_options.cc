#include "ps_server/grpc/grpc_server_options.h"

#include <chrono>

#include "common/protocol/limits.h"
#include "common/rpc/grpc_socket_options.h"

namespace weir {
namespace {

using std::chrono::milliseconds;

// A client that is silent for this time is pinged, and its connection is closed after the same time again.
constexpr milliseconds kPing{10'000};
// For so long may a handshake last, of TLS and of HTTP/2 together.
constexpr milliseconds kHandshake{20'000};
// A connection without a call is closed after this time. Its client opens another one when it needs one.
constexpr milliseconds kIdle{300'000};

}  // namespace

absl::Status SetServerOptions(const v1::JobConfig& config, ConnectionLimits* connections,
                              grpc::ServerBuilder* builder) {
  const auto set = [builder](const char* argument, auto value) {
    builder->AddChannelArgument(argument, static_cast<int>(value));
  };
  // Otherwise a second server on the same port would take half of the first one's calls.
  set(GRPC_ARG_ALLOW_REUSEPORT, 0);
  builder->SetMaxReceiveMessageSize(kMaxMessageBytes);
  // Clients ping while a call is parked, to notice a dead server; by default gRPC treats this as abuse.
  set(GRPC_ARG_HTTP2_MIN_RECV_PING_INTERVAL_WITHOUT_DATA_MS, 500);
  // The server pings clients too: the streams of a client that is gone or stopped end, and release what they
  // hold.
  set(GRPC_ARG_KEEPALIVE_TIME_MS, kPing.count());
  set(GRPC_ARG_KEEPALIVE_TIMEOUT_MS, kPing.count());
  set(GRPC_ARG_HTTP2_MAX_PINGS_WITHOUT_DATA, 0);
  set(GRPC_ARG_SERVER_HANDSHAKE_TIMEOUT_MS, kHandshake.count());
  set(GRPC_ARG_MAX_CONNECTION_IDLE_MS, kIdle.count());
  set(GRPC_ARG_MAX_CONCURRENT_STREAMS, config.server().clients().calls_of_connection());
  return SetSocketOptions(
      config.wire().congestion_control(), [connections](int fd) { return connections->Admit(fd); }, builder);
}

}  // namespace weir
