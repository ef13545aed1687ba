#pragma once

#include <grpcpp/server.h>

#include <memory>
#include <thread>
#include <vector>

#include "absl/status/statusor.h"
#include "common/config/address.h"
#include "common/system/unique_fd.h"

namespace weir {

// Lets the clients on its machine reach a running gRPC server over a Unix socket too, which they find by the
// server's TCP address (LocalGrpcTarget). Only processes of this user and of root are admitted, since an
// abstract name has no file permissions; other users reach the port. One thread.
class GrpcLocalListener {
 public:
  // `server` is bound to `bound` and outlives the listener.
  static absl::StatusOr<std::unique_ptr<GrpcLocalListener>> Start(grpc::Server* server, const Address& bound);
  // Takes no more clients; connected clients stay with the server. Must run before the server's Shutdown().
  ~GrpcLocalListener();

 private:
  GrpcLocalListener(grpc::Server* server, std::vector<UniqueFd> listeners, UniqueFd stop);
  void Run();

  grpc::Server* const server_;
  const std::vector<UniqueFd> listeners_;
  const UniqueFd stop_;  // an eventfd
  std::thread thread_;
};

}  // namespace weir
