#include "ps_server/grpc/coordinator_service.h"

#include <limits>
#include <utility>

#include "absl/strings/str_cat.h"

namespace weir {
namespace {

const RpcRule& Rule(absl::string_view method) {
  return RuleOf(absl::StrCat(CoordinatorService::kService, "/", method));
}

// Serves a method whose broken connections have no effect.
template <typename Request, typename Reply>
void Serve(GrpcEventLoop* loop, GrpcMethods* service, GrpcAdmission* admission, const RpcRule& rule,
           Coordinator* coordinator,
           void (Coordinator::*method)(Request, std::function<void(absl::StatusOr<Reply>)>)) {
  ServeUnary<Request, Reply>(loop, service, admission, rule,
                             [coordinator, method](Request request, auto done) {
                               (coordinator->*method)(std::move(request), std::move(done));
                               return nullptr;
                             });
}

// Serves a method whose broken connections are reported for the member.
template <typename Request, typename Reply>
void ServeMember(GrpcEventLoop* loop, GrpcMethods* service, GrpcAdmission* admission, const RpcRule& rule,
                 Coordinator* coordinator,
                 void (Coordinator::*method)(Request, std::function<void(absl::StatusOr<Reply>)>)) {
  ServeUnary<Request, Reply>(loop, service, admission, rule,
                             [coordinator, method](Request request, auto done) {
                               const v1::Caller caller = request.caller();
                               (coordinator->*method)(std::move(request), std::move(done));
                               return [coordinator, caller] { coordinator->OnDisconnect(caller); };
                             });
}

}  // namespace

CoordinatorService::CoordinatorService(GrpcEventLoop* loop, GrpcAdmission* admission)
    : loop_(loop), admission_(admission), service_(kService) {}

void CoordinatorService::Start(Coordinator* coordinator) {
  // A model may be as large as the largest message that the server accepts.
  ServeUnary<v1::JoinRequest, v1::JoinReply>(
      loop_, &service_, admission_, Rule("Join"),
      [this, coordinator](v1::JoinRequest request, auto done) {
        const uint64_t instance = request.instance();
        const uint64_t number = ++joins_;
        coordinator->Join(std::move(request), std::move(done), number);
        return [coordinator, instance, number] { coordinator->OnJoinCancelled(instance, number); };
      },
      std::numeric_limits<size_t>::max());
  ServeUnary<v1::StatusRequest, v1::ClusterStatus>(
      loop_, &service_, admission_, Rule("Status"),
      [coordinator](const v1::StatusRequest& request, auto done) {
        coordinator->Status(std::move(done), request.with_loss_curve());
        return nullptr;
      });
  // Methods whose broken connections are reported.
  const auto serve_member = [&](absl::string_view name, auto method) {
    ServeMember(loop_, &service_, admission_, Rule(name), coordinator, method);
  };
  serve_member("Heartbeat", &Coordinator::Heartbeat);
  serve_member("NextRange", &Coordinator::NextRange);
  serve_member("Pin", &Coordinator::Pin);
  // Methods whose broken connections have no effect.
  const auto serve = [&](absl::string_view name, auto method) {
    Serve(loop_, &service_, admission_, Rule(name), coordinator, method);
  };
  serve("Leave", &Coordinator::Leave);
  serve("Unpin", &Coordinator::Unpin);
  serve("Report", &Coordinator::Report);
  serve("Stop", &Coordinator::Stop);
  serve("Checkpoint", &Coordinator::Checkpoint);
  serve("Announce", &Coordinator::Announce);
}

void CoordinatorService::Refuse(std::function<absl::Status()> why) {
  const auto refuse = [&](absl::string_view name, auto request, auto reply) {
    using Request = decltype(request);
    using Reply = decltype(reply);
    ServeUnary<Request, Reply>(loop_, &service_, admission_, Rule(name), [why](const Request&, auto done) {
      done(why());
      return nullptr;
    });
  };
  refuse("Join", v1::JoinRequest(), v1::JoinReply());
  refuse("Heartbeat", v1::HeartbeatRequest(), v1::HeartbeatReply());
  refuse("Leave", v1::LeaveRequest(), v1::LeaveReply());
  refuse("NextRange", v1::NextRangeRequest(), v1::NextRangeReply());
  refuse("Pin", v1::PinRequest(), v1::PinReply());
  refuse("Unpin", v1::UnpinRequest(), v1::UnpinReply());
  refuse("Report", v1::ReportRequest(), v1::ReportReply());
  refuse("Stop", v1::StopRequest(), v1::StopReply());
  refuse("Checkpoint", v1::CheckpointRequest(), v1::CheckpointReply());
  refuse("Announce", v1::AnnounceRequest(), v1::AnnounceReply());
  refuse("Status", v1::StatusRequest(), v1::ClusterStatus());
}

}  // namespace weir
