#pragma once

#include <grpcpp/server_builder.h>

#include <cstdint>
#include <memory>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "common/config/address.h"
#include "common/rpc/grpc_credentials.h"
#include "proto/job_config.pb.h"
#include "ps_server/grpc/connection_limits.h"
#include "ps_server/grpc/grpc_local_listener.h"
#include "ps_server/grpc/grpc_tcp_listener.h"
#include "ps_server/shared_memory/shared_memory_server.h"

namespace weir {

// Where clients reach a server: the address to which it is bound, and for workers on its host a Unix socket
// and shared memory, which are faster. A host may lack the latter two; then a warning says so.
//
// Bind(), build the server, Open(), Accept(), Close(). One thread. Must outlive the sessions, which refer to
// places in shared memory.
class GrpcListeners {
 public:
  struct Options {
    // Port 0: any free one.
    Address at;
    // The server's, in messages.
    uint32_t shard = 0;
    v1::JobConfig config;
    // Clients need no token.
    bool open = false;
    std::shared_ptr<const JobCredentials> credentials;
    // Outlives the listeners.
    ConnectionLimits* limits = nullptr;
  };
  // An error says why the address cannot be bound.
  static absl::StatusOr<std::unique_ptr<GrpcListeners>> Bind(Options options, grpc::ServerBuilder* builder);

  // `server` outlives the listeners until Close().
  absl::Status Open(grpc::Server* server);
  // Takes clients at a TCP address, those included that came before.
  absl::Status Accept();
  // Takes no more clients. Must run before the server's Shutdown().
  void Close();

  // With the port that was bound.
  const Address& bound() const { return bound_; }
  // From Open() on. Null: there is none.
  SharedMemoryServer* shared_memory() const { return shared_memory_.get(); }

 private:
  explicit GrpcListeners(Options options) : options_(std::move(options)), bound_(options_.at) {}
  void ServeThisHost(grpc::Server* server);
  void Lacks(const char* what, const absl::Status& why) const;

  const Options options_;
  Address bound_;
  std::unique_ptr<GrpcTcpListener> tcp_;  // null at a Unix socket
  std::unique_ptr<GrpcLocalListener> local_;
  std::unique_ptr<SharedMemoryServer> shared_memory_;
};

}  // namespace weir
