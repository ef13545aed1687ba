#pragma once

#include <grpcpp/server.h>

#include <memory>
#include <thread>
#include <vector>

#include "absl/status/statusor.h"
#include "common/config/address.h"
#include "common/system/unique_fd.h"

namespace weir {

// Lets the clients on its machine reach a running gRPC server over a Unix socket as well, one that they find
// by the server's TCP address (LocalGrpcTarget). Only processes of this user and of root are let in, since an
// abstract name has no file permissions; others reach the port. One thread.
class GrpcLocalListener {
 public:
  // `server` is bound to `bound` and outlives the listener.
  static absl::StatusOr<std::unique_ptr<GrpcLocalListener>> Start(grpc::Server* server, const Address& bound);
  // No further client is taken; those there stay the server's. Before the server's Shutdown().
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
