#include "cli/grpc_status_client.h"

#include <grpcpp/grpcpp.h>

#include <chrono>

#include "proto/coordinator.grpc.pb.h"

namespace weir {

struct StatusClient::Connection {
  std::unique_ptr<v1::Coordinator::Stub> stub;
};

StatusClient::StatusClient(const std::string& address) : connection_(std::make_unique<Connection>()) {
  grpc::ChannelArguments arguments;
  // Servers are peers on the cluster's own network; a proxy from the environment would only be in the way.
  arguments.SetInt(GRPC_ARG_ENABLE_HTTP_PROXY, 0);
  // A server that was just started is asked again soon.
  arguments.SetInt(GRPC_ARG_INITIAL_RECONNECT_BACKOFF_MS, 100);
  arguments.SetInt(GRPC_ARG_MIN_RECONNECT_BACKOFF_MS, 100);
  arguments.SetInt(GRPC_ARG_MAX_RECONNECT_BACKOFF_MS, 1000);
  connection_->stub = v1::Coordinator::NewStub(
      grpc::CreateCustomChannel(address, grpc::InsecureChannelCredentials(), arguments));
}

StatusClient::~StatusClient() = default;

absl::StatusOr<v1::ClusterStatus> StatusClient::Get(absl::Duration deadline) {
  grpc::ClientContext context;
  context.set_deadline(std::chrono::system_clock::now() + absl::ToChronoMilliseconds(deadline));
  v1::ClusterStatus reply;
  const grpc::Status status = connection_->stub->Status(&context, v1::StatusRequest(), &reply);
  if (status.ok()) return reply;
  return absl::Status(static_cast<absl::StatusCode>(status.error_code()), status.error_message());
}

}  // namespace weir
