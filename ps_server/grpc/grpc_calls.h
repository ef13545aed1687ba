#pragma once

#include <grpcpp/grpcpp.h>
#include <grpcpp/impl/codegen/proto_utils.h>
#include <grpcpp/impl/service_type.h>
#include <grpcpp/support/async_stream.h>

#include <deque>
#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <type_traits>
#include <utility>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/string_view.h"
#include "common/protocol/limits.h"
#include "common/rpc/grpc_convert.h"
#include "proto/coordinator.pb.h"
#include "ps_server/grpc/grpc_admission.h"
#include "ps_server/grpc/grpc_event_loop.h"

namespace weir {

// The methods of a service, each of whose calls this server takes when the headers have come: so a stranger's
// call is refused unread, and a request that does not come has a time limit. The services that gRPC generates
// take a call of a method with one request only when all of the request has come, from everybody, however
// long that lasts. On the wire such a call is a stream in which each end sends one message.
class GrpcMethods final : public grpc::Service {
 public:
  using Stream = grpc::ServerAsyncReaderWriter<grpc::ByteBuffer, grpc::ByteBuffer>;

  // `service`: the full name of one of this program's services, "weir.v1.Coordinator".
  explicit GrpcMethods(absl::string_view service);

  // The number of a method of the service, "weir.v1.Coordinator/Join".
  int IndexOf(absl::string_view method) const;
  // Asks gRPC for the next call of a method. The event comes to the queue, with the tag.
  void Accept(int method, grpc::ServerContext* context, Stream* stream, grpc::ServerCompletionQueue* queue,
              void* tag) {
    RequestAsyncBidiStreaming(method, context, stream, queue, queue, tag);
  }

 private:
  // "/weir.v1.Coordinator/Join". gRPC refers to them.
  std::deque<std::string> paths_;
};

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

// How a call ends whose request does not come.
inline grpc::Status NoRequest() {
  return {grpc::StatusCode::INVALID_ARGUMENT, "the call ended without its request"};
}
inline grpc::Status LateRequest() {
  return {grpc::StatusCode::DEADLINE_EXCEEDED,
          absl::StrCat("the request did not come within ", GrpcEventLoop::kRequestTime.count(), " s")};
}

// Parses a request if it has at most so many bytes, which are taken away. Fields that this program does not
// know are left out: they would be kept for as long as the request is.
template <typename Request>
absl::Status ParseRequest(size_t most_bytes, grpc::ByteBuffer* received, Request* request) {
  const size_t bytes = received->Length();
  if (bytes > most_bytes) {
    received->Clear();
    return LimitReached(
        Limit::kRequestBytes, absl::StatusCode::kResourceExhausted,
        absl::StrCat("the request has ", bytes, " bytes; at most ", most_bytes, " are allowed"));
  }
  const grpc::Status parsed = grpc::SerializationTraits<Request>::Deserialize(received, request);
  received->Clear();
  request->DiscardUnknownFields();
  return FromGrpc(parsed, Request::descriptor()->full_name());
}

// A call of a unary method. Its request is read when its caller is admitted, so a stranger's message is never
// taken, and is parsed if it is no larger than this method's requests can be. A request that does not come
// whole in time ends the call. Lives on its loop's thread. Owns itself until the call is over and all its
// operations have ended; the callback that still owes the answer keeps the call alive too.
template <typename Request, typename Reply>
class GrpcUnaryCall final : GrpcEventLoop::RequestWaiter {
 public:
  // Gives the answer: exactly once, from any thread.
  using Done = std::function<void(absl::StatusOr<Reply>)>;
  using OnCancel = std::function<void()>;
  struct Method {
    GrpcEventLoop* loop = nullptr;
    GrpcMethods* service = nullptr;
    int method = 0;  // GrpcMethods::IndexOf()
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
    call->method_->service->Accept(call->method_->method, &call->context_, &call->stream_,
                                   call->method_->loop->queue(), call->accept_.Begin());
  }

  explicit GrpcUnaryCall(std::shared_ptr<const Method> method)
      : method_(std::move(method)), stream_(&context_) {}

 private:
  void OnAccepted(bool ok) {
    if (!ok) return self_.reset();  // the server is shut down
    over_.Begin();
    method_->loop->CallBegins();
    Accept(method_);
    if (method_->admission != nullptr) {
      const grpc::Status admitted = method_->admission->Admit(context_, *method_->rule, &caller_);
      if (!admitted.ok()) return Finish(admitted);
    }
    if (method_->loop->stopping()) return;
    method_->loop->AwaitRequest(this);
    stream_.Read(&received_, read_.Begin());
  }

  void OnLate() override { Finish(LateRequest()); }

  void OnRead(bool ok) {
    method_->loop->RequestCame(this);
    if (!ok) Finish(NoRequest());
    if (!ok || ended_) return ReleaseIfEnded();
    Request request;
    const absl::Status parsed = ParseRequest(method_->most_bytes, &received_, &request);
    if (!parsed.ok()) return Finish(Counted(parsed));
    const std::optional<Speaker> speaker = SpeakerOfRequest<Request>::Get(request);
    if (speaker.has_value() && method_->admission != nullptr) {
      const grpc::Status admitted =
          method_->admission->AdmitMessage(context_, *method_->rule, caller_, *speaker);
      if (!admitted.ok()) return Finish(admitted);
    }
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
    if (ended_ || !over_.under_way() || method_->loop->stopping()) return;
    ended_ = true;
    if (status.ok()) {
      stream_.WriteAndFinish(reply_, grpc::WriteOptions(), status, finish_.Begin());
    } else {
      stream_.Finish(status, finish_.Begin());
    }
  }

  void OnFinished(bool) { ReleaseIfEnded(); }

  void OnOver(bool) {
    method_->loop->CallEnds();
    if (on_cancel_ != nullptr && context_.IsCancelled()) std::exchange(on_cancel_, nullptr)();
    ReleaseIfEnded();
  }

  void ReleaseIfEnded() {
    if (!over_.under_way() && !read_.under_way() && !finish_.under_way()) self_.reset();
  }

  using Operation = GrpcOperation<GrpcUnaryCall>;

  const std::shared_ptr<const Method> method_;
  std::shared_ptr<GrpcUnaryCall> self_;
  grpc::ServerContext context_;
  GrpcMethods::Stream stream_;
  std::optional<Identity> caller_;
  grpc::ByteBuffer received_, reply_;
  OnCancel on_cancel_;
  bool ended_ = false;  // finish_ has begun
  Operation accept_{this, &GrpcUnaryCall::OnAccepted};
  Operation read_{this, &GrpcUnaryCall::OnRead};
  Operation finish_{this, &GrpcUnaryCall::OnFinished};
  // In flight until the call is over, whichever end ended it.
  Operation over_{this, &GrpcUnaryCall::OnOver};
};

// Serves a method on a loop; the rule names it, and outlives the loop. Null for the admission admits
// everybody. The service outlives the loop's thread.
template <typename Request, typename Reply>
void ServeUnary(GrpcEventLoop* loop, GrpcMethods* service, GrpcAdmission* admission, const RpcRule& rule,
                decltype(GrpcUnaryCall<Request, Reply>::Method::handle) handle,
                size_t most_bytes = kMaxRequestBytes) {
  using Call = GrpcUnaryCall<Request, Reply>;
  auto method = std::make_shared<typename Call::Method>();
  method->loop = loop;
  method->service = service;
  method->method = service->IndexOf(rule.method);
  method->most_bytes = most_bytes;
  method->admission = admission;
  method->rule = &rule;
  method->handle = std::move(handle);
  loop->Post([method] { Call::Accept(method); });
}

}  // namespace weir
