#include "ps_server/coordinator_service.h"

#include "ps_server/grpc_unary_call.h"

namespace weir {

grpc::ServerUnaryReactor* CoordinatorService::Join(grpc::CallbackServerContext*,
                                                   const v1::JoinRequest* request, v1::JoinReply* reply) {
  const uint64_t number = ++joins_;
  auto* call =
      new UnaryCall<v1::JoinReply>(reply, [coordinator = coordinator_, instance = request->instance(),
                                           number] { coordinator->OnJoinCancelled(instance, number); });
  coordinator_->Join(*request, call->Done(), number);
  return call;
}

grpc::ServerUnaryReactor* CoordinatorService::Heartbeat(grpc::CallbackServerContext*,
                                                        const v1::HeartbeatRequest* request,
                                                        v1::HeartbeatReply* reply) {
  auto* call = new UnaryCall<v1::HeartbeatReply>(
      reply,
      [coordinator = coordinator_, worker = request->caller().worker(),
       incarnation = request->caller().incarnation()] { coordinator->OnDisconnect(worker, incarnation); });
  coordinator_->Heartbeat(*request, call->Done());
  return call;
}

grpc::ServerUnaryReactor* CoordinatorService::Leave(grpc::CallbackServerContext*,
                                                    const v1::LeaveRequest* request, v1::LeaveReply* reply) {
  auto* call = new UnaryCall<v1::LeaveReply>(reply);
  coordinator_->Leave(*request, call->Done());
  return call;
}

grpc::ServerUnaryReactor* CoordinatorService::NextRange(grpc::CallbackServerContext*,
                                                        const v1::NextRangeRequest* request,
                                                        v1::NextRangeReply* reply) {
  auto* call = new UnaryCall<v1::NextRangeReply>(reply);
  coordinator_->NextRange(*request, call->Done());
  return call;
}

grpc::ServerUnaryReactor* CoordinatorService::Pin(grpc::CallbackServerContext*, const v1::PinRequest* request,
                                                  v1::PinReply* reply) {
  auto* call = new UnaryCall<v1::PinReply>(reply);
  coordinator_->Pin(*request, call->Done());
  return call;
}

grpc::ServerUnaryReactor* CoordinatorService::Unpin(grpc::CallbackServerContext*,
                                                    const v1::UnpinRequest* request, v1::UnpinReply* reply) {
  auto* call = new UnaryCall<v1::UnpinReply>(reply);
  coordinator_->Unpin(*request, call->Done());
  return call;
}

grpc::ServerUnaryReactor* CoordinatorService::Report(grpc::CallbackServerContext*,
                                                     const v1::ReportRequest* request,
                                                     v1::ReportReply* reply) {
  auto* call = new UnaryCall<v1::ReportReply>(reply);
  coordinator_->Report(*request, call->Done());
  return call;
}

grpc::ServerUnaryReactor* CoordinatorService::Status(grpc::CallbackServerContext*, const v1::StatusRequest*,
                                                     v1::ClusterStatus* reply) {
  auto* call = new UnaryCall<v1::ClusterStatus>(reply);
  coordinator_->Status(call->Done());
  return call;
}

}  // namespace weir
