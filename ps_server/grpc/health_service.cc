#include "ps_server/grpc/health_service.h"

#include <grpcpp/grpcpp.h>

#include <optional>

#include "absl/strings/str_cat.h"
#include "ps_server/grpc/grpc_unary_call.h"

namespace weir {

using grpc::health::v1::HealthCheckRequest;
using grpc::health::v1::HealthCheckResponse;

// Owns itself: it is deleted when the call is over and all its operations have ended.
class HealthService::WatchCall final : GrpcEventLoop::OperationStarter {
 public:
  static void Accept(HealthService* service) {
    GrpcEventLoop& loop = *service->loop_;
    if (loop.stopping()) return;
    auto* const call = new WatchCall(service);
    call->context_.AsyncNotifyWhenDone(call->over_.tag());
    service->service_.RequestWatch(&call->context_, &call->request_, &call->writer_, loop.queue(),
                                   loop.queue(), call->accept_.Begin());
  }

  // The status of the watched service may have changed.
  void Changed() { service_->loop_->StartOperationsLater(this); }

 private:
  explicit WatchCall(HealthService* service) : service_(service), writer_(&context_) {}

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
      if (over_.under_way() || finish_.under_way()) return;
      service_->watchers_.erase(this);
      delete this;
      return;
    }
    const auto status = !service_->Knows(request_.service()) ? HealthCheckResponse::SERVICE_UNKNOWN
                        : service_->serving_                 ? HealthCheckResponse::SERVING
                                                             : HealthCheckResponse::NOT_SERVING;
    if (told_ != status) {
      told_ = status;
      HealthCheckResponse response;
      response.set_status(status);
      writer_.Write(response, write_.Begin());
    } else if (!service_->serving_) {
      closed_ = true;
      writer_.Finish({grpc::StatusCode::UNAVAILABLE, "the server ends"}, finish_.Begin());
    }
  }

  using Operation = GrpcOperation<WatchCall>;

  HealthService* const service_;
  grpc::ServerContext context_;
  HealthCheckRequest request_;
  grpc::ServerAsyncWriter<HealthCheckResponse> writer_;
  std::optional<HealthCheckResponse::ServingStatus> told_;
  bool closed_ = false;  // no more operations start
  Operation accept_{this, &WatchCall::OnAccepted};
  Operation write_{this, &WatchCall::OnWritten};
  Operation finish_{this, &WatchCall::OnFinished};
  Operation over_{this, &WatchCall::OnOver};
};

void HealthService::Start() {
  ServeUnary<HealthCheckRequest, HealthCheckResponse>(
      loop_, &service_, &Service::RequestCheck, /*admission=*/nullptr, RuleOf("grpc.health.v1.Health/Check"),
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
