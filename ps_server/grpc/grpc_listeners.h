#pragma once

#include <grpcpp/server_builder.h>

#include <chrono>
#include <cstddef>
#include <cstdint>
#include <functional>
#include <memory>
#include <string>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "common/config/address.h"
#include "common/rpc/grpc_credentials.h"
#include "common/system/unique_fd.h"
#include "proto/job_config.pb.h"
#include "ps_server/grpc/accept_loop.h"
#include "ps_server/grpc/client_limits.h"
#include "ps_server/shared_memory/shared_memory_server.h"

// The options of a gRPC server, and the sockets at which clients reach it.
namespace weir {

// A client that is silent for this time is pinged, and its connection is closed after the same time again.
inline constexpr std::chrono::milliseconds kClientPing{10'000};

// Give the builder of a server the options that do not depend on its services: the limits of a connection,
// and time limits for silent clients. `memory_bytes` (0: any number) limits the bytes that have come over all
// connections and were not taken yet. When the limit is reached, gRPC ends calls.
void SetServerOptions(const v1::ClientLimits& limits, size_t memory_bytes, grpc::ServerBuilder* builder);
// The options for a server of grpc.health.v1 alone, to which everybody may connect.
void SetHealthOptions(grpc::ServerBuilder* builder);

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

// Lets the clients on its machine reach a running gRPC server over a Unix socket too, which they find by the
// server's TCP address (LocalGrpcTarget). Only processes of this user and of root are admitted, since an
// abstract name has no file permissions; other users reach the port. `server` is bound to `bound`, and
// outlives the loop, which must be destroyed before the server's Shutdown(); connected clients stay with the
// server.
absl::StatusOr<std::unique_ptr<AcceptLoop>> ServeLocalSocket(grpc::Server* server, const Address& bound);

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
  std::unique_ptr<AcceptLoop> local_;
  std::unique_ptr<SharedMemoryServer> shared_memory_;
};

}  // namespace weir
