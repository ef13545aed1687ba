#include "client/grpc/grpc_transport.h"

#include <algorithm>
#include <random>
#include <utility>

#include "client/grpc/grpc_coordinator_channel.h"
#include "client/grpc/grpc_shard_channel.h"
#include "client/tensors/wire_options.h"
#include "common/base/status_macros.h"
#include "common/codec/wire_codec.h"
#include "common/rpc/grpc_credentials.h"
#include "common/telemetry/grpc_process.h"

namespace weir {
namespace {

std::chrono::nanoseconds ServerWait(const v1::JobConfig& config) {
  return std::chrono::duration_cast<std::chrono::nanoseconds>(
      std::chrono::duration<double>(config.cluster().server_wait_seconds()));
}

}  // namespace

absl::StatusOr<std::unique_ptr<GrpcTransport>> GrpcTransport::Create(const v1::JobConfig& config,
                                                                     JobToken token,
                                                                     std::shared_ptr<const Tls> tls) {
  WEIR_RETURN_IF_ERROR(CheckRoomForGrpc());
  WEIR_ASSIGN_OR_RETURN(std::shared_ptr<GrpcPoller> poller,
                        GrpcPoller::Shared(std::chrono::microseconds(config.wire().busy_poll_us()),
                                           WireOptions::From(config.wire()).shared_memory));
  return std::unique_ptr<GrpcTransport>(
      new GrpcTransport(config, std::move(token), std::move(tls), std::move(poller)));
}

GrpcTransport::GrpcTransport(const v1::JobConfig& config, JobToken token, std::shared_ptr<const Tls> tls,
                             std::shared_ptr<GrpcPoller> poller)
    : config_(config),
      token_(std::move(token)),
      credentials_(std::make_shared<const JobCredentials>(std::move(tls))),
      poller_(std::move(poller)) {}

uint64_t GrpcTransport::NewInstance() {
  std::random_device random;
  return uint64_t{random()} << 32 | random();
}

std::unique_ptr<CoordinatorChannel> GrpcTransport::OpenCoordinator(
    const std::string& address, std::optional<std::chrono::nanoseconds> attempt) {
  return std::make_unique<GrpcCoordinatorChannel>(address, token_, credentials_, ServerWait(config_), attempt,
                                                  *poller_);
}

std::unique_ptr<ShardChannel> GrpcTransport::OpenShard(uint32_t shard, const std::string& address,
                                                       int64_t elements) {
  GrpcShardChannel::Options options;
  options.index = shard;
  options.address = address;
  options.token = token_;
  options.credentials = credentials_;
  options.wire = config_.wire();
  options.bytes = elements * static_cast<int64_t>(sizeof(float));
  // Any number of rows may come along.
  if (config_.tables_size() > 0) options.bytes = std::max(options.bytes, kMaxChunkBytes);
  options.server_wait = ServerWait(config_);
  return std::make_unique<GrpcShardChannel>(std::move(options), *poller_);
}

}  // namespace weir
