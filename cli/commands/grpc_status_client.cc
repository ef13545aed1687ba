#include "cli/commands/grpc_status_client.h"

#include <grpcpp/grpcpp.h>

#include <chrono>
#include <utility>

#include "common/rpc/grpc_convert.h"
#include "common/rpc/grpc_credentials.h"
#include "proto/coordinator.grpc.pb.h"
#include "proto/parameter_server.grpc.pb.h"

namespace weir {

namespace {

std::shared_ptr<grpc::Channel> ConnectTo(uint32_t server, const std::string& address,
                                         std::shared_ptr<const Tls> tls) {
  grpc::ChannelArguments arguments;
  // Servers are peers on the cluster's own network; a proxy from the environment would only be in the way.
  arguments.SetInt(GRPC_ARG_ENABLE_HTTP_PROXY, 0);
  // A server that was just started is asked again soon; a busy server gets time to accept.
  arguments.SetInt(GRPC_ARG_INITIAL_RECONNECT_BACKOFF_MS, 100);
  arguments.SetInt(GRPC_ARG_MIN_RECONNECT_BACKOFF_MS, 2000);
  arguments.SetInt(GRPC_ARG_MAX_RECONNECT_BACKOFF_MS, 1000);
  return grpc::CreateCustomChannel(address, JobCredentials(std::move(tls)).ToServer(server, address),
                                   arguments);
}

// One unary call, of this name.
template <typename Stub, typename Request, typename Reply>
absl::StatusOr<Reply> Call(const char* name, Stub& stub, const JobToken& token,
                           grpc::Status (Stub::*method)(grpc::ClientContext*, const Request&, Reply*),
                           const Request& request, absl::Duration deadline) {
  grpc::ClientContext context;
  context.set_deadline(std::chrono::system_clock::now() + absl::ToChronoMilliseconds(deadline));
  SetToken(token, &context);
  Reply reply;
  const grpc::Status status = (stub.*method)(&context, request, &reply);
  if (status.ok()) return reply;
  return FromGrpc(status, name);
}

}  // namespace

struct StatusClient::Connection {
  JobToken token;
  std::unique_ptr<v1::Coordinator::Stub> stub;
};

StatusClient::StatusClient(const std::string& address, JobToken token, std::shared_ptr<const Tls> tls)
    : connection_(std::make_unique<Connection>()) {
  connection_->token = std::move(token);
  connection_->stub = v1::Coordinator::NewStub(ConnectTo(/*server=*/0, address, std::move(tls)));
}

StatusClient::~StatusClient() = default;

absl::StatusOr<v1::ClusterStatus> StatusClient::Get(absl::Duration deadline) {
  return Call("weir.v1.Coordinator/Status", *connection_->stub, connection_->token,
              &v1::Coordinator::Stub::Status, v1::StatusRequest(), deadline);
}

absl::StatusOr<v1::CheckpointReply> StatusClient::TakeCheckpoint(absl::Duration deadline) {
  return Call("weir.v1.Coordinator/Checkpoint", *connection_->stub, connection_->token,
              &v1::Coordinator::Stub::Checkpoint, v1::CheckpointRequest(), deadline);
}

absl::StatusOr<v1::ReadRowsReply> ReadRows(uint32_t server, const std::string& address, const JobToken& token,
                                           std::shared_ptr<const Tls> tls, const v1::ReadRowsRequest& request,
                                           absl::Duration deadline) {
  const auto stub = v1::ParameterServer::NewStub(ConnectTo(server, address, std::move(tls)));
  return Call("weir.v1.ParameterServer/ReadRows", *stub, token, &v1::ParameterServer::Stub::ReadRows, request,
              deadline);
}

}  // namespace weir
