#include "ps_server/grpc/grpc_server_options.h"

#include "common/protocol/limits.h"

namespace weir {
namespace {

using std::chrono::milliseconds;

// For so long may a handshake last, of TLS and of HTTP/2 together.
constexpr milliseconds kHandshake{20'000};
// A connection without a call is closed after this time. Its client opens another one when it needs one.
constexpr milliseconds kIdle{300'000};

}  // namespace

void SetServerOptions(const v1::ClientLimits& limits, grpc::ServerBuilder* builder) {
  const auto set = [builder](const char* argument, auto value) {
    builder->AddChannelArgument(argument, static_cast<int>(value));
  };
  builder->SetMaxReceiveMessageSize(kMaxMessageBytes);
  // Clients ping while a call is parked, to notice a dead server; by default gRPC treats this as abuse.
  set(GRPC_ARG_HTTP2_MIN_RECV_PING_INTERVAL_WITHOUT_DATA_MS, 500);
  // The server pings clients too: the streams of a client that is gone or stopped end, and release what they
  // hold.
  set(GRPC_ARG_KEEPALIVE_TIME_MS, kClientPing.count());
  set(GRPC_ARG_KEEPALIVE_TIMEOUT_MS, kClientPing.count());
  set(GRPC_ARG_HTTP2_MAX_PINGS_WITHOUT_DATA, 0);
  set(GRPC_ARG_SERVER_HANDSHAKE_TIMEOUT_MS, kHandshake.count());
  set(GRPC_ARG_MAX_CONNECTION_IDLE_MS, kIdle.count());
  set(GRPC_ARG_MAX_CONCURRENT_STREAMS, limits.calls_of_connection());
}

}  // namespace weir
