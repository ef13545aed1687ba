#pragma once

#include <chrono>
#include <memory>
#include <string>

#include "absl/status/statusor.h"
#include "client/call/call_group.h"
#include "client/call/call_limits.h"
#include "client/grpc/grpc_poller.h"
#include "common/rpc/job_token.h"
#include "common/sync/future.h"
#include "proto/coordinator.pb.h"

namespace weir {

// Enters the job at the coordinator on ps:0, whose address is request.ps_addresses(0), and waits until the
// job may start, at most `start`; ps:0 itself need not be there yet. What it waits for is logged after 10
// seconds, and every 10 seconds from then on. Errors are the coordinator's; Unavailable or DeadlineExceeded:
// `start` has passed. `again`: this process was in the job before, so a ps:0 that is not there at all is
// Unavailable after `server_wait`.
absl::StatusOr<v1::JoinReply> JoinJob(const v1::JoinRequest& request, const JobToken& token,
                                      std::chrono::nanoseconds start, std::chrono::nanoseconds server_wait,
                                      bool again);

// The coordinator as a client that has joined sees it: single calls, each retried under its own key until its
// limits are reached. The heartbeat is apart (client/grpc/grpc_heartbeat.h). Thread-safe. Outlives its calls,
// as do the poller and the group.
class GrpcCoordinator {
 public:
  // server_wait: how long a silent coordinator is waited for.
  GrpcCoordinator(const std::string& address, const JobToken& token, std::chrono::nanoseconds server_wait,
                  GrpcPoller& poller, CallGroup& group);
  ~GrpcCoordinator();

  Future<v1::NextRangeReply> NextRange(const v1::NextRangeRequest& request, const CallLimits& limits);
  Future<v1::PinReply> Pin(const v1::PinRequest& request, const CallLimits& limits);
  Future<v1::UnpinReply> Unpin(const v1::UnpinRequest& request, const CallLimits& limits);
  Future<v1::ReportReply> Report(const v1::ReportRequest& request, const CallLimits& limits);
  // Does not belong to the group: it is sent when all other calls have been ended.
  absl::Status Leave(const v1::LeaveRequest& request, const CallLimits& limits);

 private:
  struct Impl;
  const std::unique_ptr<Impl> impl_;
};

}  // namespace weir
