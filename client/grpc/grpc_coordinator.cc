#include "client/grpc/grpc_coordinator.h"

#include <algorithm>
#include <optional>
#include <thread>
#include <utility>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "client/call/backoff.h"
#include "client/grpc/grpc_call.h"
#include "client/grpc/grpc_channel.h"
#include "common/protocol/job_failure.h"
#include "common/rpc/grpc_status.h"
#include "common/rpc/grpc_token.h"
#include "common/system/clock.h"
#include "common/telemetry/logging.h"
#include "proto/coordinator.grpc.pb.h"

namespace weir {
namespace {

using Steady = std::chrono::steady_clock;
using Stub = v1::Coordinator::Stub;

std::string CoordinatorName(const std::string& address) {
  return absl::StrCat("ps:0 (coordinator) at ", address);
}

// A call with one request and one reply.
template <typename Request, typename Reply>
class UnaryCall final : public GrpcCall {
 public:
  using Method = std::unique_ptr<grpc::ClientAsyncResponseReader<Reply>> (Stub::*)(grpc::ClientContext*,
                                                                                   const Request&,
                                                                                   grpc::CompletionQueue*);

  UnaryCall(GrpcPoller& poller, CallGroup& group, const char* what, const std::string& peer,
            const CallLimits& limits, const JobToken& token, Stub& stub, Method method,
            const Request& request)
      : GrpcCall(poller, group, what, peer, limits, token),
        stub_(stub),
        method_(method),
        request_(request),
        promise_(poller.driver()) {}

  Future<Reply> future() const { return promise_.future(); }

 private:
  void StartTry(grpc::ClientContext* context, grpc::CompletionQueue* queue, grpc::Status* status,
                void* tag) override {
    reply_.Clear();
    rpc_ = (stub_.*method_)(context, request_, queue);
    rpc_->Finish(&reply_, status, tag);
  }
  void Finish(const absl::Status& status) override {
    if (status.ok()) {
      promise_.Set(std::move(reply_));
    } else {
      promise_.Set(status);
    }
  }

  Stub& stub_;
  const Method method_;
  const Request request_;
  std::unique_ptr<grpc::ClientAsyncResponseReader<Reply>> rpc_;
  Reply reply_;
  Promise<Reply> promise_;
};

// A Join in flight, and who holds it up.
class JoinTry {
 public:
  JoinTry(const v1::JoinRequest& request, const JobToken& token, std::chrono::nanoseconds limit,
          std::chrono::nanoseconds server_wait, std::chrono::nanoseconds attempt)
      : token_(token),
        // A fresh channel: gRPC would ask for a name that does not resolve yet more and more seldom.
        channel_(MakeChannel(request.ps_addresses(0), server_wait, attempt)),
        stub_(v1::Coordinator::NewStub(channel_)) {
    context_.set_deadline(std::chrono::system_clock::now() + limit);
    SetToken(token_, &context_);
    stub_->async()->Join(&context_, &request, &reply_, [this](const grpc::Status& status) {
      MutexLock lock(mutex_);
      status_ = FromGrpc(status);
      done_.NotifyAll();
    });
  }

  // nullopt: no answer by `deadline`.
  std::optional<absl::Status> Wait(Steady::time_point deadline) {
    MutexLock lock(mutex_);
    while (!status_.has_value()) {
      if (!done_.WaitUntil(mutex_, deadline)) break;
    }
    return status_;
  }
  v1::JoinReply& reply() { return reply_; }
  bool connected() const { return channel_->GetState(false) == GRPC_CHANNEL_READY; }

  // What the coordinator waits for, by its own account; "": it does not answer.
  std::string WaitingFor() {
    if (!connected()) return "";
    grpc::ClientContext context;
    context.set_deadline(std::chrono::system_clock::now() + std::chrono::seconds(1));
    SetToken(token_, &context);
    v1::ClusterStatus status;
    if (!stub_->Status(&context, v1::StatusRequest(), &status).ok()) return "";
    return absl::StrJoin(status.waiting_for(), ", ");
  }

 private:
  const JobToken& token_;
  const std::shared_ptr<grpc::Channel> channel_;
  const std::unique_ptr<Stub> stub_;
  grpc::ClientContext context_;
  v1::JoinReply reply_;
  Mutex mutex_;
  CondVar done_;
  std::optional<absl::Status> status_ ABSL_GUARDED_BY(mutex_);
};

}  // namespace

absl::StatusOr<v1::JoinReply> JoinJob(const v1::JoinRequest& request, const JobToken& token,
                                      std::chrono::nanoseconds start, std::chrono::nanoseconds server_wait,
                                      bool again) {
  constexpr auto kReportEvery = std::chrono::seconds(10);
  constexpr auto kLook = std::chrono::milliseconds(200);
  // The coordinator knows the same limit and says more when it is reached.
  constexpr auto kSlack = std::chrono::seconds(1);
  const std::string name = CoordinatorName(request.ps_addresses(0));
  // Awake, both: when to give up, and when the coordinator was last connected.
  const Clock& awake = Clock::Awake();
  const absl::Time deadline = awake.Now() + absl::FromChrono(start);
  absl::Time heard = awake.Now();
  Steady::time_point next_report = Steady::now() + kReportEvery;
  Backoff backoff(std::chrono::milliseconds(50), std::chrono::milliseconds(again ? 100 : 1000));
  std::string last_error = "it did not answer yet";
  std::chrono::nanoseconds attempt = kFirstAttempt;
  while (true) {
    const std::chrono::nanoseconds try_limit = absl::ToChronoNanoseconds(deadline - awake.Now()) + kSlack;
    const Steady::time_point try_ends = Steady::now() + try_limit;
    JoinTry join(request, token, try_limit, server_wait, attempt);
    attempt = std::min<std::chrono::nanoseconds>(2 * attempt, kLongestAttempt);
    std::string waiting_for;
    std::optional<absl::Status> status;
    // A try has the deadline of the whole, so that this ends.
    while (
        !(status = join.Wait(std::min<Steady::time_point>(next_report, Steady::now() + kLook))).has_value()) {
      if (join.connected()) heard = awake.Now();
      if (Steady::now() < next_report) continue;
      waiting_for = join.WaitingFor();
      if (!waiting_for.empty()) {
        LogWarning("waits for the job to start; missing: ", waiting_for);
      } else {
        LogWarning("waits for ", name, ": ", last_error);
      }
      next_report += kReportEvery;
    }
    if (status->ok()) return std::move(join.reply());
    const absl::Time now = awake.Now();
    if (join.connected()) heard = now;
    const std::string limit =
        absl::StrCat(" within cluster.start_seconds = ", std::chrono::duration<double>(start).count(), " s");
    if (absl::IsDeadlineExceeded(*status) && now < deadline && Steady::now() >= try_ends) {
      continue;  // this process was stopped meanwhile
    }
    if (absl::IsDeadlineExceeded(*status) && now >= deadline) {
      return absl::DeadlineExceededError(absl::StrCat(
          name, " did not start the job", limit, ": ",
          waiting_for.empty() ? std::string(status->message()) : absl::StrCat("missing: ", waiting_for)));
    }
    if (!absl::IsUnavailable(*status) && !absl::IsCancelled(*status)) {
      return Reworded(*status, absl::StrCat(name, ": ", status->message()));
    }
    last_error = std::string(status->message());
    if (now >= deadline) {
      return absl::UnavailableError(absl::StrCat(name, " could not be reached", limit, ": ", last_error));
    }
    if (again && now - heard >= absl::FromChrono(server_wait)) {
      return absl::UnavailableError(absl::StrCat(
          name, " could not be reached within cluster.server_wait_seconds = ",
          std::chrono::duration<double>(server_wait).count(), " s, to join the job again: ", last_error));
    }
    const std::chrono::nanoseconds left = absl::ToChronoNanoseconds(deadline - now);
    std::this_thread::sleep_for(std::min<std::chrono::nanoseconds>(backoff.Next(), left));
    if (Steady::now() >= next_report) {
      LogWarning("waits for ", name, ": ", last_error);
      next_report += kReportEvery;
    }
  }
}

struct GrpcCoordinator::Impl {
  const std::string name;
  const JobToken token;
  GrpcPoller& poller;
  CallGroup& group;
  const std::shared_ptr<grpc::Channel> channel;
  const std::unique_ptr<Stub> stub = v1::Coordinator::NewStub(channel);

  template <typename Request, typename Reply>
  Future<Reply> Call(CallGroup& in, const char* what, const CallLimits& limits,
                     typename UnaryCall<Request, Reply>::Method method, const Request& request) {
    auto call = std::make_shared<UnaryCall<Request, Reply>>(poller, in, what, name, limits, token, *stub,
                                                            method, request);
    Future<Reply> future = call->future();
    call->Start();
    return future;
  }
};

GrpcCoordinator::GrpcCoordinator(const std::string& address, const JobToken& token,
                                 std::chrono::nanoseconds server_wait, GrpcPoller& poller, CallGroup& group)
    : impl_(new Impl{CoordinatorName(address), token, poller, group, MakeChannel(address, server_wait)}) {}

GrpcCoordinator::~GrpcCoordinator() = default;

Future<v1::NextRangeReply> GrpcCoordinator::NextRange(const v1::NextRangeRequest& request,
                                                      const CallLimits& limits) {
  return impl_->Call<v1::NextRangeRequest, v1::NextRangeReply>(impl_->group, "NextRange", limits,
                                                               &Stub::AsyncNextRange, request);
}

Future<v1::PinReply> GrpcCoordinator::Pin(const v1::PinRequest& request, const CallLimits& limits) {
  return impl_->Call<v1::PinRequest, v1::PinReply>(impl_->group, "Pin", limits, &Stub::AsyncPin, request);
}

Future<v1::UnpinReply> GrpcCoordinator::Unpin(const v1::UnpinRequest& request, const CallLimits& limits) {
  return impl_->Call<v1::UnpinRequest, v1::UnpinReply>(impl_->group, "Unpin", limits, &Stub::AsyncUnpin,
                                                       request);
}

Future<v1::ReportReply> GrpcCoordinator::Report(const v1::ReportRequest& request, const CallLimits& limits) {
  return impl_->Call<v1::ReportRequest, v1::ReportReply>(impl_->group, "Report", limits, &Stub::AsyncReport,
                                                         request);
}

absl::Status GrpcCoordinator::Leave(const v1::LeaveRequest& request, const CallLimits& limits) {
  CallGroup group;
  const Future<v1::LeaveReply> left =
      impl_->Call<v1::LeaveRequest, v1::LeaveReply>(group, "Leave", limits, &Stub::AsyncLeave, request);
  left.Get().status().IgnoreError();
  group.WaitUntilEmpty();
  return left.Get().status();
}

}  // namespace weir
