#pragma once

#include <grpcpp/server_builder.h>

#include <cstdint>

#include "proto/coordinator.grpc.pb.h"
#include "ps_server/coordinator/coordinator.h"
#include "ps_server/grpc_event_loop.h"

namespace weir {

// Coordinator over gRPC, on an event loop. Construct, Register(), build the server, Start(). Outlives the
// loop's thread.
class CoordinatorService {
 public:
  // The loop outlives the coordinator, which may answer calls when the loop has stopped.
  explicit CoordinatorService(GrpcEventLoop* loop) : loop_(loop) {}

  void Register(grpc::ServerBuilder* builder) { builder->RegisterService(&service_); }
  // The coordinator outlives the loop's thread.
  void Start(Coordinator* coordinator);

 private:
  GrpcEventLoop* const loop_;
  v1::Coordinator::AsyncService service_;
  uint64_t joins_ = 0;  // the loop's
};

}  // namespace weir
