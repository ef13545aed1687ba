#include "client/grpc/grpc_coordinator_channel.h"

#include <utility>

#include "absl/strings/str_cat.h"
#include "client/grpc/grpc_channel.h"
#include "common/rpc/grpc_completion_loop.h"
#include "common/rpc/grpc_convert.h"
#include "common/rpc/grpc_credentials.h"
#include "common/rpc/tls.h"
#include "proto/coordinator.grpc.pb.h"

namespace weir {
namespace {

using Stub = v1::Coordinator::Stub;

template <typename Request, typename Reply>
class UnaryTry final : public CoordinatorChannel::Try,
                       public std::enable_shared_from_this<UnaryTry<Request, Reply>>,
                       private GrpcEvent {
 public:
  using Method = std::unique_ptr<grpc::ClientAsyncResponseReader<Reply>> (Stub::*)(grpc::ClientContext*,
                                                                                   const Request&,
                                                                                   grpc::CompletionQueue*);

  UnaryTry(const char* name, std::shared_ptr<grpc::Channel> channel, const JobToken& token,
           CoordinatorChannel::Limit limit, CoordinatorChannel::Done<Reply> done)
      : name_(name), channel_(std::move(channel)), done_(std::move(done)) {
    if (limit != CoordinatorChannel::Limit::max()) {
      context_.set_deadline(std::chrono::system_clock::now() + limit);
    }
    SetToken(token, &context_);
  }

  void Start(Stub& stub, Method method, const Request& request, grpc::CompletionQueue* queue) {
    self_ = this->shared_from_this();
    rpc_ = (stub.*method)(&context_, request, queue);
    rpc_->Finish(&reply_, &status_, static_cast<GrpcEvent*>(this));
  }
  void Cancel() override { context_.TryCancel(); }

 private:
  void OnEvent(bool /*ok*/) override {
    const auto self = std::move(self_);
    done_(status_.ok() ? absl::StatusOr<Reply>(std::move(reply_)) : FromGrpc(status_, name_));
  }

  const char* const name_;  // of the call
  // The context holds the channel, too. But the owner of the other reference may let go at the same time, and
  // ThreadSanitizer sees the order only where this code, and not gRPC's, lets go last.
  const std::shared_ptr<grpc::Channel> channel_;
  grpc::ClientContext context_;
  CoordinatorChannel::Done<Reply> done_;
  std::unique_ptr<grpc::ClientAsyncResponseReader<Reply>> rpc_;
  Reply reply_;
  grpc::Status status_;
  // Set until OnEvent().
  std::shared_ptr<UnaryTry> self_;
};

}  // namespace

struct GrpcCoordinatorChannel::Impl {
  const std::string name, address;
  const JobToken token;
  const std::shared_ptr<const JobCredentials> credentials;
  GrpcPoller& poller;
  const std::shared_ptr<grpc::Channel> channel;
  const std::unique_ptr<Stub> stub = v1::Coordinator::NewStub(channel);

  template <typename Request, typename Reply>
  TryPtr Start(const char* call, typename UnaryTry<Request, Reply>::Method method, const Request& request,
               Limit limit, Done<Reply> done) {
    auto started = std::make_shared<UnaryTry<Request, Reply>>(call, channel, token, limit, std::move(done));
    started->Start(*stub, method, request, poller.queue());
    return started;
  }
};

GrpcCoordinatorChannel::GrpcCoordinatorChannel(const std::string& address, const JobToken& token,
                                               std::shared_ptr<const JobCredentials> credentials,
                                               std::chrono::nanoseconds server_wait,
                                               std::optional<std::chrono::nanoseconds> attempt,
                                               GrpcPoller& poller)
    : impl_(new Impl{absl::StrCat("ps:0 (coordinator) at ", address), address, token, credentials, poller,
                     MakeChannel(/*index=*/0, address, *credentials, server_wait, attempt)}) {}
GrpcCoordinatorChannel::~GrpcCoordinatorChannel() = default;

std::string GrpcCoordinatorChannel::name() const { return impl_->name; }
bool GrpcCoordinatorChannel::connected() const {
  return impl_->channel->GetState(/*try_to_connect=*/false) == GRPC_CHANNEL_READY;
}
absl::Status GrpcCoordinatorChannel::Diagnose() {
  return ProbeTls(impl_->address, /*server=*/0, impl_->credentials->tls());
}

CoordinatorChannel::TryPtr GrpcCoordinatorChannel::Join(const v1::JoinRequest& request, Limit limit,
                                                        Done<v1::JoinReply> done) {
  return impl_->Start<v1::JoinRequest, v1::JoinReply>("weir.v1.Coordinator/Join", &Stub::AsyncJoin, request,
                                                      limit, std::move(done));
}

CoordinatorChannel::TryPtr GrpcCoordinatorChannel::Status(const v1::StatusRequest& request, Limit limit,
                                                          Done<v1::ClusterStatus> done) {
  return impl_->Start<v1::StatusRequest, v1::ClusterStatus>("weir.v1.Coordinator/Status", &Stub::AsyncStatus,
                                                            request, limit, std::move(done));
}

CoordinatorChannel::TryPtr GrpcCoordinatorChannel::Heartbeat(const v1::HeartbeatRequest& request, Limit limit,
                                                             Done<v1::HeartbeatReply> done) {
  return impl_->Start<v1::HeartbeatRequest, v1::HeartbeatReply>(
      "weir.v1.Coordinator/Heartbeat", &Stub::AsyncHeartbeat, request, limit, std::move(done));
}

CoordinatorChannel::TryPtr GrpcCoordinatorChannel::NextRange(const v1::NextRangeRequest& request, Limit limit,
                                                             Done<v1::NextRangeReply> done) {
  return impl_->Start<v1::NextRangeRequest, v1::NextRangeReply>(
      "weir.v1.Coordinator/NextRange", &Stub::AsyncNextRange, request, limit, std::move(done));
}

CoordinatorChannel::TryPtr GrpcCoordinatorChannel::Pin(const v1::PinRequest& request, Limit limit,
                                                       Done<v1::PinReply> done) {
  return impl_->Start<v1::PinRequest, v1::PinReply>("weir.v1.Coordinator/Pin", &Stub::AsyncPin, request,
                                                    limit, std::move(done));
}

CoordinatorChannel::TryPtr GrpcCoordinatorChannel::Unpin(const v1::UnpinRequest& request, Limit limit,
                                                         Done<v1::UnpinReply> done) {
  return impl_->Start<v1::UnpinRequest, v1::UnpinReply>("weir.v1.Coordinator/Unpin", &Stub::AsyncUnpin,
                                                        request, limit, std::move(done));
}

CoordinatorChannel::TryPtr GrpcCoordinatorChannel::Report(const v1::ReportRequest& request, Limit limit,
                                                          Done<v1::ReportReply> done) {
  return impl_->Start<v1::ReportRequest, v1::ReportReply>("weir.v1.Coordinator/Report", &Stub::AsyncReport,
                                                          request, limit, std::move(done));
}

CoordinatorChannel::TryPtr GrpcCoordinatorChannel::Leave(const v1::LeaveRequest& request, Limit limit,
                                                         Done<v1::LeaveReply> done) {
  return impl_->Start<v1::LeaveRequest, v1::LeaveReply>("weir.v1.Coordinator/Leave", &Stub::AsyncLeave,
                                                        request, limit, std::move(done));
}

}  // namespace weir
