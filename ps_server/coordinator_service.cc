#include "ps_server/coordinator_service.h"

#include <utility>

#include "ps_server/grpc_unary_call.h"

namespace weir {

void CoordinatorService::Start(Coordinator* coordinator) {
  using Service = v1::Coordinator::AsyncService;
  ServeUnary(loop_, &service_, &Service::RequestJoin,
             [this, coordinator](v1::JoinRequest request, auto done) {
               const uint64_t instance = request.instance();
               const uint64_t number = ++joins_;
               coordinator->Join(std::move(request), std::move(done), number);
               return [coordinator, instance, number] { coordinator->OnJoinCancelled(instance, number); };
             });
  // Those of members.
  const auto serve_member = [this, coordinator](auto request_call, auto method) {
    ServeUnary(loop_, &service_, request_call, [coordinator, method](auto request, auto done) {
      const uint32_t worker = request.caller().worker();
      const uint64_t incarnation = request.caller().incarnation();
      (coordinator->*method)(std::move(request), std::move(done));
      return [coordinator, worker, incarnation] { coordinator->OnDisconnect(worker, incarnation); };
    });
  };
  serve_member(&Service::RequestHeartbeat, &Coordinator::Heartbeat);
  serve_member(&Service::RequestNextRange, &Coordinator::NextRange);
  serve_member(&Service::RequestPin, &Coordinator::Pin);
  // Those whose callers may go away unnoticed.
  const auto serve = [this, coordinator](auto request_call, auto method) {
    ServeUnary(loop_, &service_, request_call, [coordinator, method](auto request, auto done) {
      (coordinator->*method)(std::move(request), std::move(done));
      return nullptr;
    });
  };
  serve(&Service::RequestLeave, &Coordinator::Leave);
  serve(&Service::RequestUnpin, &Coordinator::Unpin);
  serve(&Service::RequestReport, &Coordinator::Report);
  serve(&Service::RequestCheckpoint, &Coordinator::Checkpoint);
  serve(&Service::RequestAnnounce, &Coordinator::Announce);
  ServeUnary(loop_, &service_, &Service::RequestStatus, [coordinator](const v1::StatusRequest&, auto done) {
    coordinator->Status(std::move(done));
    return nullptr;
  });
}

}  // namespace weir
