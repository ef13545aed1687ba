#include "tests/integration/grpc_raw_caller.h"

#include <grpcpp/grpcpp.h>

#include <chrono>
#include <memory>

#include "proto/coordinator.grpc.pb.h"
#include "proto/parameter_server.grpc.pb.h"
#include "tests/ps_server/grpc_raw_stream.h"

namespace weir {
namespace {

std::shared_ptr<grpc::Channel> Connect(const std::string& address) {
  grpc::ChannelArguments arguments;
  arguments.SetInt(GRPC_ARG_USE_LOCAL_SUBCHANNEL_POOL, 1);
  arguments.SetInt(GRPC_ARG_ENABLE_HTTP_PROXY, 0);
  return grpc::CreateCustomChannel(address, grpc::InsecureChannelCredentials(), arguments);
}

void SetDeadline(grpc::ClientContext* context) {
  context->set_deadline(std::chrono::system_clock::now() + std::chrono::seconds(60));
}

absl::Status ToAbsl(const grpc::Status& status) {
  return absl::Status(static_cast<absl::StatusCode>(status.error_code()), status.error_message());
}

}  // namespace

absl::StatusOr<v1::JoinReply> RawJoin(const std::string& address, const v1::JoinRequest& request) {
  grpc::ClientContext context;
  SetDeadline(&context);
  v1::JoinReply reply;
  const grpc::Status status = v1::Coordinator::NewStub(Connect(address))->Join(&context, request, &reply);
  if (!status.ok()) return ToAbsl(status);
  return reply;
}

absl::Status RawLeave(const std::string& address, const v1::LeaveRequest& request) {
  grpc::ClientContext context;
  SetDeadline(&context);
  v1::LeaveReply reply;
  return ToAbsl(v1::Coordinator::NewStub(Connect(address))->Leave(&context, request, &reply));
}

absl::StatusOr<v1::PushReply> RawPush(const std::string& address, const v1::PushRequest& header,
                                      const std::string& gradient, uint64_t first) {
  const auto stub = v1::ParameterServer::NewStub(Connect(address));
  v1::ExchangeRequest message;
  message.set_id(1);
  *message.mutable_push() = header;
  message.set_first(first);
  message.set_gradient(gradient);
  const ExchangeResult result = RawStream(*stub).Run({message});
  if (!result.error.ok()) return result.error;
  return *result.push;
}

}  // namespace weir
