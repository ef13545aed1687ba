#pragma once

#include <chrono>
#include <cstdint>
#include <memory>
#include <optional>
#include <string>

#include "absl/status/statusor.h"
#include "client/grpc/grpc_poller.h"
#include "client/job/transport.h"
#include "common/rpc/job_token.h"
#include "common/rpc/tls.h"
#include "proto/job_config.pb.h"

namespace weir {

class JobCredentials;

// A transport over gRPC, and over shared memory where the job's config and the host allow it.
class GrpcTransport final : public Transport {
 public:
  // The config outlives this object. An error: the system gives no threads.
  static absl::StatusOr<std::unique_ptr<GrpcTransport>> Create(const v1::JobConfig& config, JobToken token,
                                                               std::shared_ptr<const Tls> tls);

  std::shared_ptr<EventLoop> loop() override { return poller_; }
  uint64_t NewInstance() override;
  std::unique_ptr<CoordinatorChannel> OpenCoordinator(
      const std::string& address, std::optional<std::chrono::nanoseconds> attempt) override;
  std::unique_ptr<ShardChannel> OpenShard(uint32_t shard, const std::string& address,
                                          int64_t elements) override;

 private:
  GrpcTransport(const v1::JobConfig& config, JobToken token, std::shared_ptr<const Tls> tls,
                std::shared_ptr<GrpcPoller> poller);

  const v1::JobConfig& config_;
  const JobToken token_;
  const std::shared_ptr<const JobCredentials> credentials_;
  const std::shared_ptr<GrpcPoller> poller_;
};

}  // namespace weir
