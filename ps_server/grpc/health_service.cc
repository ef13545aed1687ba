#include "ps_server/grpc/health_service.h"

#include <grpcpp/grpcpp.h>

#include <optional>

#include "absl/strings/str_cat.h"
#include "proto/health.pb.h"

namespace weir {

using grpc::health::v1::HealthCheckRequest;
using grpc::health::v1::HealthCheckResponse;

// Owns itself: it is deleted when the call is over and all its operations have ended.
class HealthService::WatchCall final : GrpcEventLoop::OperationStarter, GrpcEventLoop::RequestWaiter {
 public:
  static void Accept(HealthService* service) {
    GrpcEventLoop& loop = *service->loop_;
    if (loop.stopping()) return;
    auto* const call = new WatchCall(service);
    call->context_.AsyncNotifyWhenDone(call->over_.tag());
    service->service_.Accept(service->service_.IndexOf("grpc.health.v1.Health/Watch"), &call->context_,
                             &call->stream_, loop.queue(), call->accept_.Begin());
  }

  // The status of the watched service may have changed.
  void Changed() { service_->loop_->StartOperationsLater(this); }

 private:
  explicit WatchCall(HealthService* service) : service_(service), stream_(&context_) {}

  void OnAccepted(bool ok) {
    if (!ok) {
      delete this;  // the server is shut down
      return;
    }
    over_.Begin();
    service_->loop_->CallBegins();
    service_->watchers_.insert(this);
    Accept(service_);
    Changed();
    if (service_->loop_->stopping()) return;
    service_->loop_->AwaitRequest(this);
    stream_.Read(&received_, read_.Begin());
  }
  void OnLate() override {
    end_ = LateRequest();
    Changed();
  }
  void OnRead(bool ok) {
    service_->loop_->RequestCame(this);
    Changed();
    if (end_.has_value()) return;
    HealthCheckRequest request;
    const absl::Status parsed = ok ? ParseRequest(kMaxRequestBytes, &received_, &request) : absl::OkStatus();
    if (!ok) {
      end_ = NoRequest();
    } else if (!parsed.ok()) {
      end_ = ToGrpc(parsed);
    } else {
      knows_ = service_->Knows(request.service());
    }
  }
  void OnWritten(bool ok) {
    if (!ok) closed_ = true;  // OnOver comes
    Changed();
  }
  void OnFinished(bool) { Changed(); }
  void OnOver(bool) {
    service_->loop_->CallEnds();
    closed_ = true;
    Changed();
  }

  void StartOperations() override {
    if (service_->loop_->stopping()) closed_ = true;
    if (write_.under_way()) return;
    if (closed_) {
      if (over_.under_way() || read_.under_way() || finish_.under_way()) return;
      service_->watchers_.erase(this);
      delete this;
      return;
    }
    if (knows_.has_value() && !end_.has_value()) {
      const auto status = !*knows_             ? HealthCheckResponse::SERVICE_UNKNOWN
                          : service_->serving_ ? HealthCheckResponse::SERVING
                                               : HealthCheckResponse::NOT_SERVING;
      if (told_ != status) return Tell(status);
      if (!service_->serving_) end_ = grpc::Status(grpc::StatusCode::UNAVAILABLE, "the server ends");
    }
    if (!end_.has_value()) return;
    closed_ = true;
    stream_.Finish(*end_, finish_.Begin());
  }

  void Tell(HealthCheckResponse::ServingStatus status) {
    told_ = status;
    HealthCheckResponse response;
    response.set_status(status);
    bool own_buffer = false;
    grpc::SerializationTraits<HealthCheckResponse>::Serialize(response, &response_, &own_buffer);
    stream_.Write(response_, write_.Begin());
  }

  using Operation = GrpcOperation<WatchCall>;

  HealthService* const service_;
  grpc::ServerContext context_;
  GrpcMethods::Stream stream_;
  grpc::ByteBuffer received_, response_;
  // Whether the server has the watched service, once the request has come.
  std::optional<bool> knows_;
  std::optional<HealthCheckResponse::ServingStatus> told_;
  // The end, once it is decided.
  std::optional<grpc::Status> end_;
  bool closed_ = false;  // no more operations start
  Operation accept_{this, &WatchCall::OnAccepted};
  Operation read_{this, &WatchCall::OnRead};
  Operation write_{this, &WatchCall::OnWritten};
  Operation finish_{this, &WatchCall::OnFinished};
  Operation over_{this, &WatchCall::OnOver};
};

HealthService::HealthService(GrpcEventLoop* loop, std::set<std::string> services)
    : loop_(loop), services_(std::move(services)), service_("grpc.health.v1.Health") {}

void HealthService::Start() {
  ServeUnary<HealthCheckRequest, HealthCheckResponse>(
      loop_, &service_, /*admission=*/nullptr, RuleOf("grpc.health.v1.Health/Check"),
      [this](const HealthCheckRequest& request, auto done) {
        if (Knows(request.service())) {
          HealthCheckResponse response;
          response.set_status(serving_ ? HealthCheckResponse::SERVING : HealthCheckResponse::NOT_SERVING);
          done(std::move(response));
        } else {
          done(absl::NotFoundError(absl::StrCat("this server has no service \"", request.service(), "\"")));
        }
        return nullptr;
      });
  loop_->Post([this] { WatchCall::Accept(this); });
}

void HealthService::End() {
  loop_->Post([this] {
    serving_ = false;
    for (WatchCall* call : watchers_) call->Changed();
  });
}

}  // namespace weir
