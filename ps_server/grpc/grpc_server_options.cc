#include "ps_server/grpc/grpc_server_options.h"

#include <grpc/compression.h>
#include <grpcpp/resource_quota.h>

#include "common/protocol/limits.h"

namespace weir {
namespace {

using std::chrono::milliseconds;

// For so long may a handshake last, of TLS and of HTTP/2 together.
constexpr milliseconds kHandshake{20'000};
// A connection without a call is closed after this time. Its client opens another one when it needs one.
constexpr milliseconds kIdle{300'000};
// gRPC's own reflection has a thread for each stream. More streams than this are refused.
constexpr int kThreads = 4;

constexpr int kHealthMessageBytes = 4096;  // more than any name of a service needs
constexpr int kHealthCalls = 8;
constexpr size_t kHealthMemory = 16 << 20;
constexpr milliseconds kHealthIdle{30'000}, kHealthAge{300'000};

void Set(const char* argument, int64_t value, grpc::ServerBuilder* builder) {
  builder->AddChannelArgument(argument, static_cast<int>(value));
}

// `memory_bytes`: for what has come and was not taken yet; 0: any.
void SetLimits(int message_bytes, uint32_t calls_of_connection, size_t memory_bytes,
               grpc::ServerBuilder* builder) {
  builder->SetMaxReceiveMessageSize(message_bytes);
  Set(GRPC_ARG_SERVER_HANDSHAKE_TIMEOUT_MS, kHandshake.count(), builder);
  Set(GRPC_ARG_MAX_CONCURRENT_STREAMS, calls_of_connection, builder);
  // Nothing is sent compressed, and gRPC would unpack a message before its size is checked.
  for (const grpc_compression_algorithm algorithm : {GRPC_COMPRESS_DEFLATE, GRPC_COMPRESS_GZIP}) {
    builder->SetCompressionAlgorithmSupportStatus(algorithm, false);
  }
  Set(GRPC_ARG_ENABLE_PER_MESSAGE_DECOMPRESSION, 0, builder);
  grpc::ResourceQuota quota;
  quota.SetMaxThreads(kThreads);
  if (memory_bytes > 0) quota.Resize(memory_bytes);
  builder->SetResourceQuota(quota);
}

}  // namespace

void SetServerOptions(const v1::ClientLimits& limits, size_t memory_bytes, grpc::ServerBuilder* builder) {
  SetLimits(kMaxMessageBytes, limits.calls_of_connection(), memory_bytes, builder);
  // Clients ping while a call is parked, to notice a dead server; by default gRPC treats this as abuse.
  Set(GRPC_ARG_HTTP2_MIN_RECV_PING_INTERVAL_WITHOUT_DATA_MS, 500, builder);
  // The server pings clients too: the streams of a client that is gone or stopped end, and release what they
  // hold.
  Set(GRPC_ARG_KEEPALIVE_TIME_MS, kClientPing.count(), builder);
  Set(GRPC_ARG_KEEPALIVE_TIMEOUT_MS, kClientPing.count(), builder);
  Set(GRPC_ARG_HTTP2_MAX_PINGS_WITHOUT_DATA, 0, builder);
  Set(GRPC_ARG_MAX_CONNECTION_IDLE_MS, kIdle.count(), builder);
}

void SetHealthOptions(grpc::ServerBuilder* builder) {
  SetLimits(kHealthMessageBytes, kHealthCalls, kHealthMemory, builder);
  // Whoever watches connects again.
  Set(GRPC_ARG_MAX_CONNECTION_IDLE_MS, kHealthIdle.count(), builder);
  Set(GRPC_ARG_MAX_CONNECTION_AGE_MS, kHealthAge.count(), builder);
  Set(GRPC_ARG_MAX_CONNECTION_AGE_GRACE_MS, kHealthIdle.count(), builder);
}

}  // namespace weir
