#pragma once

#include <grpcpp/grpcpp.h>

#include <functional>
#include <memory>
#include <string>
#include <utility>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "ps_server/grpc_event_loop.h"

namespace weir {

// Codes of absl::Status and gRPC are the same numbers.
inline grpc::Status ToGrpc(const absl::Status& status) {
  return grpc::Status(static_cast<grpc::StatusCode>(status.code()), std::string(status.message()));
}

// A call of a unary method. Lives on its loop's thread; owns itself until the call is over and all its
// operations have come back, and is kept by whoever still owes the answer.
template <typename Request, typename Reply>
class GrpcUnaryCall final {
 public:
  // Gives the answer: once, from any thread.
  using Done = std::function<void(absl::StatusOr<Reply>)>;
  using OnCancel = std::function<void()>;
  struct Method {
    GrpcEventLoop* loop = nullptr;
    // Asks gRPC for the next call.
    std::function<void(grpc::ServerContext*, Request*, grpc::ServerAsyncResponseWriter<Reply>*, void* tag)>
        request_call;
    // Takes a call. What it returns, if anything, runs when the caller or its connection goes away before it
    // has the answer, which is still owed if it was not given. Both on the loop's thread.
    std::function<OnCancel(Request, Done)> handle;
  };

  // Waits for a client's call, and then for the next one.
  static void Accept(std::shared_ptr<const Method> method) {
    if (method->loop->stopping()) return;
    const auto call = std::make_shared<GrpcUnaryCall>(std::move(method));
    call->self_ = call;
    call->context_.AsyncNotifyWhenDone(call->over_.tag());
    call->method_->request_call(&call->context_, &call->request_, &call->responder_, call->accept_.Begin());
  }

  explicit GrpcUnaryCall(std::shared_ptr<const Method> method)
      : method_(std::move(method)), responder_(&context_) {}

 private:
  void OnAccepted(bool ok) {
    if (!ok) return self_.reset();  // the server is shut down
    over_.Begin();
    Accept(method_);
    on_cancel_ = method_->handle(std::move(request_), [call = self_](absl::StatusOr<Reply> answer) {
      call->method_->loop->Post(
          [call, answer = std::move(answer)]() mutable { call->Answer(std::move(answer)); });
    });
  }

  void Answer(absl::StatusOr<Reply> answer) {
    if (!over_.under_way() || method_->loop->stopping()) return;
    if (answer.ok()) {
      responder_.Finish(*answer, grpc::Status::OK, finish_.Begin());
    } else {
      responder_.FinishWithError(ToGrpc(answer.status()), finish_.Begin());
    }
  }

  void OnFinished(bool) { ReleaseIfEnded(); }

  void OnOver(bool) {
    if (on_cancel_ != nullptr && context_.IsCancelled()) std::exchange(on_cancel_, nullptr)();
    ReleaseIfEnded();
  }

  void ReleaseIfEnded() {
    if (!over_.under_way() && !finish_.under_way()) self_.reset();
  }

  using Operation = GrpcOperation<GrpcUnaryCall>;

  const std::shared_ptr<const Method> method_;
  std::shared_ptr<GrpcUnaryCall> self_;
  grpc::ServerContext context_;
  Request request_;
  grpc::ServerAsyncResponseWriter<Reply> responder_;
  OnCancel on_cancel_;
  Operation accept_{this, &GrpcUnaryCall::OnAccepted};
  Operation finish_{this, &GrpcUnaryCall::OnFinished};
  // Until the call is over, whoever ended it.
  Operation over_{this, &GrpcUnaryCall::OnOver};
};

// Serves a method of an AsyncService on a loop: ServeUnary(loop, &service, &Service::RequestJoin, handle).
// The service outlives the loop's thread.
template <typename Service, typename Base, typename Request, typename Reply>
void ServeUnary(GrpcEventLoop* loop, Service* service,
                void (Base::*request_call)(grpc::ServerContext*, Request*,
                                           grpc::ServerAsyncResponseWriter<Reply>*, grpc::CompletionQueue*,
                                           grpc::ServerCompletionQueue*, void*),
                decltype(GrpcUnaryCall<Request, Reply>::Method::handle) handle) {
  using Call = GrpcUnaryCall<Request, Reply>;
  auto method = std::make_shared<typename Call::Method>();
  method->loop = loop;
  method->request_call = [=](grpc::ServerContext* context, Request* request,
                             grpc::ServerAsyncResponseWriter<Reply>* responder, void* tag) {
    (service->*request_call)(context, request, responder, loop->queue(), loop->queue(), tag);
  };
  method->handle = std::move(handle);
  loop->Post([method] { Call::Accept(method); });
}

}  // namespace weir
