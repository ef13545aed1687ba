#pragma once

#include <grpcpp/server_builder.h>

#include <cstdint>
#include <functional>
#include <memory>
#include <string>

#include "absl/status/statusor.h"
#include "common/config/address.h"
#include "common/system/unique_fd.h"
#include "ps_server/grpc/accept_loop.h"
#include "ps_server/grpc/connection_limits.h"

namespace weir {

// Accepts the TCP connections of a gRPC server, as many as ConnectionLimits admits; others are reset at once.
// gRPC's own listener takes any number, and accepts nothing for ever once the process has no descriptor left;
// this one continues when there are descriptors again.
//
// Listen(), Register(), build the server, Start(). One thread.
class GrpcTcpListener {
 public:
  // Listens at each address of `at.host`: a name may have several, and 0.0.0.0 stands for those of IPv6, too.
  // Port 0: any free one. Beyond `connections_per_second` clients wait until others were accepted. `limits`
  // outlives the listener. Errors are those of ListenTcp(), and FailedPrecondition: the system does not have
  // `congestion_control` (wire.congestion_control).
  static absl::StatusOr<std::unique_ptr<GrpcTcpListener>> Listen(const Address& at,
                                                                 const std::string& congestion_control,
                                                                 double connections_per_second,
                                                                 ConnectionLimits* limits);
  // Accepts no more; open connections stay with the server. Must run before the server's Shutdown().
  ~GrpcTcpListener() = default;

  void Register(std::shared_ptr<grpc::ServerCredentials> credentials, grpc::ServerBuilder* builder);
  // The server has started. Clients that came before are accepted now.
  absl::Status Start() { return loop_->Start(); }
  uint16_t port() const { return port_; }

 private:
  GrpcTcpListener(uint16_t port, std::function<void(int fd)> set_options, ConnectionLimits* limits)
      : port_(port), set_options_(std::move(set_options)), limits_(limits) {}
  void Serve(UniqueFd client);

  const uint16_t port_;
  const std::function<void(int fd)> set_options_;
  ConnectionLimits* const limits_;
  // gRPC's side.
  std::unique_ptr<grpc::experimental::ExternalConnectionAcceptor> acceptor_;
  std::unique_ptr<AcceptLoop> loop_;  // last: its thread uses the others
};

}  // namespace weir
