#pragma once

#include <grpcpp/server_builder.h>

#include <cstdint>

#include "proto/coordinator.grpc.pb.h"
#include "ps_server/coordinator/coordinator.h"
#include "ps_server/grpc/grpc_admission.h"
#include "ps_server/grpc/grpc_event_loop.h"

namespace weir {

// Serves the Coordinator over gRPC on an event loop. Construct, Register(), build the server, Start().
// Outlives the loop's thread.
class CoordinatorService {
 public:
  // The loop and the admission outlive the coordinator, which may answer calls when the loop has stopped.
  CoordinatorService(GrpcEventLoop* loop, GrpcAdmission* admission) : loop_(loop), admission_(admission) {}

  void Register(grpc::ServerBuilder* builder) { builder->RegisterService(&service_); }
  // The coordinator outlives the loop's thread.
  void Start(Coordinator* coordinator);

 private:
  using Plain = v1::Coordinator;
  // All methods receive their messages as bytes.
  using Service = Plain::WithRawMethod_Join<Plain::WithRawMethod_Heartbeat<
      Plain::WithRawMethod_Leave<Plain::WithRawMethod_NextRange<Plain::WithRawMethod_Pin<
          Plain::WithRawMethod_Unpin<Plain::WithRawMethod_Report<Plain::WithRawMethod_Checkpoint<
              Plain::WithRawMethod_Announce<Plain::WithRawMethod_Status<Plain::Service>>>>>>>>>>;

  GrpcEventLoop* const loop_;
  GrpcAdmission* const admission_;
  Service service_;
  uint64_t joins_ = 0;  // used by the loop only
};

}  // namespace weir
