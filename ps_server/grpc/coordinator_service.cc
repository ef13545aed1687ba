#include "ps_server/grpc/coordinator_service.h"

#include <functional>
#include <limits>
#include <utility>

#include "ps_server/grpc/grpc_unary_call.h"

namespace weir {
namespace {

// Serves a method whose broken connections have no effect.
template <typename Service, typename RequestCall, typename Admit, typename Request, typename Reply>
void Serve(GrpcEventLoop* loop, Service* service, RequestCall request_call, Admit admit,
           Coordinator* coordinator,
           void (Coordinator::*method)(Request, std::function<void(absl::StatusOr<Reply>)>)) {
  ServeUnary<Request, Reply>(loop, service, request_call, admit,
                             [coordinator, method](Request request, auto done) {
                               (coordinator->*method)(std::move(request), std::move(done));
                               return nullptr;
                             });
}

// Serves a method whose broken connections are reported for the member.
template <typename Service, typename RequestCall, typename Admit, typename Request, typename Reply>
void ServeMember(GrpcEventLoop* loop, Service* service, RequestCall request_call, Admit admit,
                 Coordinator* coordinator,
                 void (Coordinator::*method)(Request, std::function<void(absl::StatusOr<Reply>)>)) {
  ServeUnary<Request, Reply>(loop, service, request_call, admit,
                             [coordinator, method](Request request, auto done) {
                               const v1::Caller caller = request.caller();
                               (coordinator->*method)(std::move(request), std::move(done));
                               return [coordinator, caller] { coordinator->OnDisconnect(caller); };
                             });
}

}  // namespace

void CoordinatorService::Start(Coordinator* coordinator) {
  const auto anybody = [this](const grpc::ServerContext& context) { return admission_->Admit(context); };
  const auto control = [this](const grpc::ServerContext& context) {
    return admission_->AdmitControl(context);
  };
  // A model may be as large as the largest message that the server accepts.
  ServeUnary<v1::JoinRequest, v1::JoinReply>(
      loop_, &service_, &Service::RequestJoin, anybody,
      [this, coordinator](v1::JoinRequest request, auto done) {
        const uint64_t instance = request.instance();
        const uint64_t number = ++joins_;
        coordinator->Join(std::move(request), std::move(done), number);
        return [coordinator, instance, number] { coordinator->OnJoinCancelled(instance, number); };
      },
      std::numeric_limits<size_t>::max());
  ServeUnary<v1::StatusRequest, v1::ClusterStatus>(
      loop_, &service_, &Service::RequestStatus, anybody,
      [coordinator](const v1::StatusRequest& request, auto done) {
        coordinator->Status(std::move(done), request.with_loss_curve());
        return nullptr;
      });
  // Methods whose broken connections are reported.
  const auto serve_member = [&](auto request_call, auto method) {
    ServeMember(loop_, &service_, request_call, anybody, coordinator, method);
  };
  serve_member(&Service::RequestHeartbeat, &Coordinator::Heartbeat);
  serve_member(&Service::RequestNextRange, &Coordinator::NextRange);
  serve_member(&Service::RequestPin, &Coordinator::Pin);
  // Methods whose broken connections have no effect.
  const auto serve = [&](auto request_call, auto admit, auto method) {
    Serve(loop_, &service_, request_call, admit, coordinator, method);
  };
  serve(&Service::RequestLeave, anybody, &Coordinator::Leave);
  serve(&Service::RequestUnpin, anybody, &Coordinator::Unpin);
  serve(&Service::RequestReport, anybody, &Coordinator::Report);
  serve(&Service::RequestCheckpoint, control, &Coordinator::Checkpoint);
  serve(&Service::RequestAnnounce, control, &Coordinator::Announce);
}

}  // namespace weir
