#pragma once

#include <atomic>

#include "proto/coordinator.grpc.pb.h"
#include "ps_server/coordinator/coordinator.h"

namespace weir {

// Coordinator over gRPC. The coordinator outlives it.
class CoordinatorService final : public v1::Coordinator::CallbackService {
 public:
  explicit CoordinatorService(Coordinator* coordinator) : coordinator_(coordinator) {}

  grpc::ServerUnaryReactor* Join(grpc::CallbackServerContext*, const v1::JoinRequest*,
                                 v1::JoinReply*) override;
  grpc::ServerUnaryReactor* Heartbeat(grpc::CallbackServerContext*, const v1::HeartbeatRequest*,
                                      v1::HeartbeatReply*) override;
  grpc::ServerUnaryReactor* Leave(grpc::CallbackServerContext*, const v1::LeaveRequest*,
                                  v1::LeaveReply*) override;
  grpc::ServerUnaryReactor* NextRange(grpc::CallbackServerContext*, const v1::NextRangeRequest*,
                                      v1::NextRangeReply*) override;
  grpc::ServerUnaryReactor* Pin(grpc::CallbackServerContext*, const v1::PinRequest*, v1::PinReply*) override;
  grpc::ServerUnaryReactor* Unpin(grpc::CallbackServerContext*, const v1::UnpinRequest*,
                                  v1::UnpinReply*) override;
  grpc::ServerUnaryReactor* Report(grpc::CallbackServerContext*, const v1::ReportRequest*,
                                   v1::ReportReply*) override;
  grpc::ServerUnaryReactor* Status(grpc::CallbackServerContext*, const v1::StatusRequest*,
                                   v1::ClusterStatus*) override;

 private:
  Coordinator* const coordinator_;
  std::atomic<uint64_t> joins_{0};
};

}  // namespace weir
