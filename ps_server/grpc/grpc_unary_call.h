#pragma once

#include <grpcpp/grpcpp.h>
#include <grpcpp/support/async_unary_call.h>

#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <type_traits>
#include <utility>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/strings/str_cat.h"
#include "common/protocol/limit_reached.h"
#include "common/protocol/limits.h"
#include "common/rpc/grpc_status.h"
#include "proto/coordinator.pb.h"
#include "ps_server/grpc/grpc_admission.h"
#include "ps_server/grpc/grpc_event_loop.h"

namespace weir {

// Whom the caller's fields in a message name.
inline Speaker SpeakerOf(const v1::Caller& caller) {
  return caller.worker() < kFirstReader ? Speaker{Role::kWorker, caller.worker()} : Speaker{Role::kReader, 0};
}

// Whom a request speaks for; nullopt: for nobody.
template <typename Request, typename = void>
struct SpeakerOfRequest {
  static std::optional<Speaker> Get(const Request& /*request*/) { return std::nullopt; }
};
template <typename Request>
struct SpeakerOfRequest<Request, std::void_t<decltype(std::declval<Request>().caller())>> {
  static std::optional<Speaker> Get(const Request& request) { return SpeakerOf(request.caller()); }
};
template <>
struct SpeakerOfRequest<v1::JoinRequest> {
  static std::optional<Speaker> Get(const v1::JoinRequest& request) {
    if (request.role() == v1::READER) return Speaker{Role::kReader, 0};
    return Speaker{Role::kWorker, request.rank()};
  }
};
template <>
struct SpeakerOfRequest<v1::AnnounceRequest> {
  static std::optional<Speaker> Get(const v1::AnnounceRequest& request) {
    return Speaker{Role::kServer, request.shard()};
  }
};

// A call of a unary method. Its request stays bytes until its caller is admitted, so a stranger's message is
// never parsed, nor one that is larger than this method's requests can be. Lives on its loop's thread. Owns
// itself until the call is over and all its operations have ended; the callback that still owes the answer
// keeps the call alive too.
template <typename Request, typename Reply>
class GrpcUnaryCall final {
 public:
  // Gives the answer: exactly once, from any thread.
  using Done = std::function<void(absl::StatusOr<Reply>)>;
  using OnCancel = std::function<void()>;
  struct Method {
    GrpcEventLoop* loop = nullptr;
    // Asks gRPC for the next call.
    std::function<void(grpc::ServerContext*, grpc::ByteBuffer*,
                       grpc::ServerAsyncResponseWriter<grpc::ByteBuffer>*, void* tag)>
        request_call;
    // The size limit of a request. Bytes.
    size_t most_bytes = 0;
    // Null: everybody may call.
    GrpcAdmission* admission = nullptr;
    const RpcRule* rule = nullptr;
    // Takes a call. The returned function, if any, runs when the caller or its connection goes away before
    // the caller has the answer; the answer is still owed if it was not given. Both run on the loop's thread.
    std::function<OnCancel(Request, Done)> handle;
  };

  // Requests the next call of a client. Each call that is accepted requests the one after it.
  static void Accept(std::shared_ptr<const Method> method) {
    if (method->loop->stopping()) return;
    const auto call = std::make_shared<GrpcUnaryCall>(std::move(method));
    call->self_ = call;
    call->context_.AsyncNotifyWhenDone(call->over_.tag());
    call->method_->request_call(&call->context_, &call->received_, &call->responder_, call->accept_.Begin());
  }

  explicit GrpcUnaryCall(std::shared_ptr<const Method> method)
      : method_(std::move(method)), responder_(&context_) {}

 private:
  void OnAccepted(bool ok) {
    if (!ok) return self_.reset();  // the server is shut down
    over_.Begin();
    method_->loop->CallBegins();
    Accept(method_);
    Request request;
    std::optional<Identity> caller;
    GrpcAdmission* const admission = method_->admission;
    grpc::Status status;
    if (admission != nullptr) status = admission->Admit(context_, *method_->rule, &caller);
    if (status.ok() && received_.Length() > method_->most_bytes) {
      status = Counted(LimitReached(Limit::kRequestBytes, absl::StatusCode::kResourceExhausted,
                                    absl::StrCat("the request has ", received_.Length(), " bytes; at most ",
                                                 method_->most_bytes, " are allowed")));
    }
    if (status.ok()) status = grpc::SerializationTraits<Request>::Deserialize(&received_, &request);
    received_.Clear();
    if (status.ok() && admission != nullptr) {
      if (const auto speaker = SpeakerOfRequest<Request>::Get(request); speaker.has_value()) {
        status = admission->AdmitMessage(context_, *method_->rule, caller, *speaker);
      }
    }
    if (!status.ok()) return Finish(status);
    on_cancel_ = method_->handle(std::move(request), [call = self_](absl::StatusOr<Reply> answer) {
      call->method_->loop->Post(
          [call, answer = std::move(answer)]() mutable { call->Answer(std::move(answer)); });
    });
  }

  void Answer(absl::StatusOr<Reply> answer) {
    if (!answer.ok()) return Finish(Counted(answer.status()));
    bool own_buffer = false;
    const grpc::Status status = grpc::SerializationTraits<Reply>::Serialize(*answer, &reply_, &own_buffer);
    Finish(status);
  }

  grpc::Status Counted(const absl::Status& status) {
    if (method_->admission != nullptr) method_->admission->limits().CountIfLimit(status);
    return ToGrpc(status);
  }

  void Finish(const grpc::Status& status) {
    if (!over_.under_way() || method_->loop->stopping()) return;
    if (status.ok()) {
      responder_.Finish(reply_, grpc::Status::OK, finish_.Begin());
    } else {
      responder_.FinishWithError(status, finish_.Begin());
    }
  }

  void OnFinished(bool) { ReleaseIfEnded(); }

  void OnOver(bool) {
    method_->loop->CallEnds();
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
  grpc::ByteBuffer received_, reply_;
  grpc::ServerAsyncResponseWriter<grpc::ByteBuffer> responder_;
  OnCancel on_cancel_;
  Operation accept_{this, &GrpcUnaryCall::OnAccepted};
  Operation finish_{this, &GrpcUnaryCall::OnFinished};
  // In flight until the call is over, whichever end ended it.
  Operation over_{this, &GrpcUnaryCall::OnOver};
};

// A size in which every request but a Join fits: the largest names 1024 ranges that a worker has completed.
// Bytes.
constexpr size_t kMaxUnaryBytes = 64 << 10;

// Serves a raw method of a service on a loop:
// ServeUnary<v1::JoinRequest, v1::JoinReply>(loop, &service, &Service::RequestJoin, admission, rule,
// handle), where null for the admission admits everybody. The rule outlives the loop.
// The service outlives the loop's thread.
template <typename Request, typename Reply, typename Service, typename Base>
void ServeUnary(GrpcEventLoop* loop, Service* service,
                void (Base::*request_call)(grpc::ServerContext*, grpc::ByteBuffer*,
                                           grpc::ServerAsyncResponseWriter<grpc::ByteBuffer>*,
                                           grpc::CompletionQueue*, grpc::ServerCompletionQueue*, void*),
                GrpcAdmission* admission, const RpcRule& rule,
                decltype(GrpcUnaryCall<Request, Reply>::Method::handle) handle,
                size_t most_bytes = kMaxUnaryBytes) {
  using Call = GrpcUnaryCall<Request, Reply>;
  auto method = std::make_shared<typename Call::Method>();
  method->loop = loop;
  method->most_bytes = most_bytes;
  method->request_call = [=](grpc::ServerContext* context, grpc::ByteBuffer* request,
                             grpc::ServerAsyncResponseWriter<grpc::ByteBuffer>* responder, void* tag) {
    (service->*request_call)(context, request, responder, loop->queue(), loop->queue(), tag);
  };
  method->admission = admission;
  method->rule = &rule;
  method->handle = std::move(handle);
  loop->Post([method] { Call::Accept(method); });
}

}  // namespace weir
