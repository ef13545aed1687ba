#pragma once

#include <chrono>
#include <memory>
#include <optional>
#include <string>

#include "client/grpc/grpc_poller.h"
#include "client/job/coordinator_channel.h"
#include "common/rpc/grpc_credentials.h"
#include "common/rpc/job_token.h"

namespace weir {

// The channel to the coordinator over gRPC. The poller outlives the channel and its tries.
class GrpcCoordinatorChannel final : public CoordinatorChannel {
 public:
  // server_wait: how long to wait for a silent coordinator. attempt: how long an attempt to connect may take.
  GrpcCoordinatorChannel(const std::string& address, const JobToken& token,
                         std::shared_ptr<const JobCredentials> credentials,
                         std::chrono::nanoseconds server_wait,
                         std::optional<std::chrono::nanoseconds> attempt, GrpcPoller& poller);
  ~GrpcCoordinatorChannel() override;

  std::string name() const override;
  bool connected() const override;
  absl::Status Diagnose() override;
  TryPtr Join(const v1::JoinRequest& request, Limit limit, Done<v1::JoinReply> done) override;
  TryPtr Status(const v1::StatusRequest& request, Limit limit, Done<v1::ClusterStatus> done) override;
  TryPtr Heartbeat(const v1::HeartbeatRequest& request, Limit limit, Done<v1::HeartbeatReply> done) override;
  TryPtr NextRange(const v1::NextRangeRequest& request, Limit limit, Done<v1::NextRangeReply> done) override;
  TryPtr Pin(const v1::PinRequest& request, Limit limit, Done<v1::PinReply> done) override;
  TryPtr Unpin(const v1::UnpinRequest& request, Limit limit, Done<v1::UnpinReply> done) override;
  TryPtr Report(const v1::ReportRequest& request, Limit limit, Done<v1::ReportReply> done) override;
  TryPtr Leave(const v1::LeaveRequest& request, Limit limit, Done<v1::LeaveReply> done) override;

 private:
  struct Impl;
  const std::unique_ptr<Impl> impl_;
};

}  // namespace weir
