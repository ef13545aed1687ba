#include "cli/commands/grpc_status_client.h"

#include <grpcpp/grpcpp.h>

#include <chrono>
#include <utility>

#include "common/rpc/grpc_credentials.h"
#include "common/rpc/grpc_status.h"
#include "common/rpc/grpc_token.h"
#include "proto/coordinator.grpc.pb.h"

namespace weir {

namespace {

// One unary call.
template <typename Request, typename Reply>
absl::StatusOr<Reply> Call(v1::Coordinator::Stub& stub, const JobToken& token,
                           grpc::Status (v1::Coordinator::Stub::*method)(grpc::ClientContext*, const Request&,
                                                                         Reply*),
                           absl::Duration deadline) {
  grpc::ClientContext context;
  context.set_deadline(std::chrono::system_clock::now() + absl::ToChronoMilliseconds(deadline));
  SetToken(token, &context);
  Reply reply;
  const grpc::Status status = (stub.*method)(&context, Request(), &reply);
  if (status.ok()) return reply;
  return FromGrpc(status);
}

}  // namespace

struct StatusClient::Connection {
  JobToken token;
  std::unique_ptr<v1::Coordinator::Stub> stub;
};

StatusClient::StatusClient(const std::string& address, JobToken token, std::shared_ptr<const Tls> tls)
    : connection_(std::make_unique<Connection>()) {
  connection_->token = std::move(token);
  grpc::ChannelArguments arguments;
  // Servers are peers on the cluster's own network; a proxy from the environment would only be in the way.
  arguments.SetInt(GRPC_ARG_ENABLE_HTTP_PROXY, 0);
  // A server that was just started is asked again soon; a busy server has some time to greet.
  arguments.SetInt(GRPC_ARG_INITIAL_RECONNECT_BACKOFF_MS, 100);
  arguments.SetInt(GRPC_ARG_MIN_RECONNECT_BACKOFF_MS, 2000);
  arguments.SetInt(GRPC_ARG_MAX_RECONNECT_BACKOFF_MS, 1000);
  const JobCredentials credentials(std::move(tls));
  connection_->stub = v1::Coordinator::NewStub(
      grpc::CreateCustomChannel(address, credentials.ToServer(/*server=*/0, address), arguments));
}

StatusClient::~StatusClient() = default;

absl::StatusOr<v1::ClusterStatus> StatusClient::Get(absl::Duration deadline) {
  return Call(*connection_->stub, connection_->token, &v1::Coordinator::Stub::Status, deadline);
}

absl::StatusOr<v1::CheckpointReply> StatusClient::TakeCheckpoint(absl::Duration deadline) {
  return Call(*connection_->stub, connection_->token, &v1::Coordinator::Stub::Checkpoint, deadline);
}

}  // namespace weir
