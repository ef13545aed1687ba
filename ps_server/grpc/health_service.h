#pragma once

#include <grpcpp/server_builder.h>

#include <set>
#include <string>
#include <utility>

#include "ps_server/grpc/grpc_calls.h"
#include "ps_server/grpc/grpc_event_loop.h"

namespace weir {

// gRPC's health checking protocol, on an event loop. (gRPC's own service uses its callback API, whose threads
// would poll the data plane's sockets.) Open to all callers, because probes have no token. All services are
// SERVING until End().
class HealthService {
 public:
  // The loop must live as long as the service uses it; the service must outlive the loop's thread.
  HealthService(GrpcEventLoop* loop, std::set<std::string> services);

  // Must be called before the server is built.
  void Register(grpc::ServerBuilder* builder) { builder->RegisterService(&service_); }
  void Start();
  // All services become NOT_SERVING: watchers get this status, and their calls end. Calls after the first
  // change nothing. Any thread.
  void End();

 private:
  class WatchCall;
  bool Knows(const std::string& service) const { return service.empty() || services_.count(service) > 0; }

  GrpcEventLoop* const loop_;
  const std::set<std::string> services_;
  GrpcMethods service_;
  // Used by the loop only.
  bool serving_ = true;
  std::set<WatchCall*> watchers_;
};

}  // namespace weir
