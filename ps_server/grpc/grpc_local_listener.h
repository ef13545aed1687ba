#pragma once

#include <grpcpp/server.h>

#include <memory>
#include <utility>

#include "absl/status/statusor.h"
#include "common/config/address.h"
#include "ps_server/grpc/accept_loop.h"

namespace weir {

// Lets the clients on its machine reach a running gRPC server over a Unix socket too, which they find by the
// server's TCP address (LocalGrpcTarget). Only processes of this user and of root are admitted, since an
// abstract name has no file permissions; other users reach the port. One thread.
class GrpcLocalListener {
 public:
  // `server` is bound to `bound` and outlives the listener.
  static absl::StatusOr<std::unique_ptr<GrpcLocalListener>> Start(grpc::Server* server, const Address& bound);
  // Takes no more clients; connected clients stay with the server. Must run before the server's Shutdown().
  ~GrpcLocalListener() = default;

 private:
  explicit GrpcLocalListener(std::unique_ptr<AcceptLoop> loop) : loop_(std::move(loop)) {}

  const std::unique_ptr<AcceptLoop> loop_;
};

}  // namespace weir
