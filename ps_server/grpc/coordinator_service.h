#pragma once

#include <grpcpp/server_builder.h>

#include <cstdint>
#include <functional>

#include "absl/status/status.h"
#include "ps_server/coordinator/coordinator.h"
#include "ps_server/grpc/grpc_admission.h"
#include "ps_server/grpc/grpc_calls.h"
#include "ps_server/grpc/grpc_event_loop.h"

namespace weir {

// Serves the Coordinator over gRPC on an event loop. Construct, Register(), build the server, Start().
// Outlives the loop's thread.
class CoordinatorService {
 public:
  static constexpr char kService[] = "weir.v1.Coordinator";

  // The loop and the admission outlive the coordinator, which may answer calls when the loop has stopped.
  CoordinatorService(GrpcEventLoop* loop, GrpcAdmission* admission);

  void Register(grpc::ServerBuilder* builder) { builder->RegisterService(&service_); }
  // The coordinator outlives the loop's thread.
  void Start(Coordinator* coordinator);
  // Instead of Start(), on a server other than ps:0, which a caller may have taken for ps:0: every call gets
  // this error. Called on the loop's thread.
  void Refuse(std::function<absl::Status()> why);

 private:
  GrpcEventLoop* const loop_;
  GrpcAdmission* const admission_;
  GrpcMethods service_;
  uint64_t joins_ = 0;  // used by the loop only
};

}  // namespace weir
