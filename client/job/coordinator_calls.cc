#include "client/job/coordinator_calls.h"

#include <chrono>
#include <memory>
#include <optional>
#include <string>
#include <utility>

#include "absl/time/time.h"
#include "client/call/call_retry.h"

namespace weir {
namespace {

// The deadlines of a channel may be rounded to milliseconds.
constexpr std::chrono::milliseconds kRounding{10};

// One call: as many tries as it takes, one after another, under the same key. It ends exactly once, on the
// event loop or, when the group is closed, within Start(). All but Start() and Cancel() runs on the event
// loop. Keeps itself alive until it has ended.
template <typename Request, typename Reply>
class RetriedCall final : public Call, public std::enable_shared_from_this<RetriedCall<Request, Reply>> {
 public:
  using Method = CoordinatorChannel::TryPtr (CoordinatorChannel::*)(const Request&, CoordinatorChannel::Limit,
                                                                    CoordinatorChannel::Done<Reply>);

  RetriedCall(CoordinatorChannel& channel, EventLoop& loop, CallGroup& group, const char* what,
              const CallLimits& limits, Method method, const Request& request)
      : channel_(channel),
        loop_(loop),
        group_(group),
        method_(method),
        request_(request),
        retry_(what, channel.name(), limits, loop.awake(), loop.real(), [&loop] { return loop.Random(); }),
        promise_(loop.driver()) {}

  Future<Reply> Start() {
    Future<Reply> future = promise_.future();
    if (absl::Status closed = group_.Add(this); !closed.ok()) {
      promise_.Set(closed);
    } else {
      loop_.Post([self = this->shared_from_this()] { self->StartTry(); });
    }
    return future;
  }

  void Cancel(const absl::Status& why) override {
    loop_.Post([self = this->shared_from_this(), why] { self->OnCancel(why); });
  }

 private:
  void OnCancel(const absl::Status& why) {
    if (over_ || !cancelled_.ok()) return;
    cancelled_ = why;
    if (try_ != nullptr) return try_->Cancel();
    // Between two tries.
    if (timer_.has_value()) loop_.Cancel(*timer_);
    End(why);
  }

  void StartTry() {
    timer_.reset();
    if (over_) return;
    retry_.TryStarts();
    const std::chrono::nanoseconds left = retry_.left();
    // In real time, which runs on while this process is stopped.
    try_deadline_ = loop_.real().Now() + absl::FromChrono(left);
    try_ = (channel_.*method_)(
        request_, left,
        [self = this->shared_from_this()](absl::StatusOr<Reply> reply) { self->OnAnswer(std::move(reply)); });
  }

  void OnAnswer(absl::StatusOr<Reply> reply) {
    try_ = nullptr;
    if (reply.ok()) return End(std::move(reply));
    if (!cancelled_.ok()) return End(cancelled_);
    std::chrono::nanoseconds wait{};
    // The try's own deadline has passed. The coordinator's error would say whom it waited for.
    if (absl::IsDeadlineExceeded(reply.status()) &&
        loop_.real().Now() + absl::FromChrono(kRounding) >= try_deadline_) {
      if (retry_.left() <= kRounding) return End(retry_.Late());
      // This process was stopped meanwhile, so the call asks anew.
    } else {
      const CallRetry::Verdict verdict = retry_.Judge(reply.status());
      if (!verdict.error.ok()) return End(verdict.error);
      wait = verdict.wait;
    }
    timer_ = loop_.RunAfter(wait, [self = this->shared_from_this()] { self->StartTry(); });
  }

  void End(absl::StatusOr<Reply> result) {
    over_ = true;
    promise_.Set(std::move(result));
    group_.Remove(this);
  }

  CoordinatorChannel& channel_;
  EventLoop& loop_;
  CallGroup& group_;
  const Method method_;
  const Request request_;
  CallRetry retry_;
  Promise<Reply> promise_;
  bool over_ = false;
  absl::Status cancelled_;
  // One of the two is set while the call is under way, unless the first try is posted.
  CoordinatorChannel::TryPtr try_;
  std::optional<EventLoop::Timer> timer_;
  absl::Time try_deadline_;
};

template <typename Request, typename Reply>
Future<Reply> StartCall(CoordinatorChannel& channel, EventLoop& loop, CallGroup& group, const char* what,
                        const CallLimits& limits, typename RetriedCall<Request, Reply>::Method method,
                        const Request& request) {
  return std::make_shared<RetriedCall<Request, Reply>>(channel, loop, group, what, limits, method, request)
      ->Start();
}

}  // namespace

Future<v1::NextRangeReply> CoordinatorCalls::NextRange(const v1::NextRangeRequest& request,
                                                       const CallLimits& limits) {
  return StartCall<v1::NextRangeRequest, v1::NextRangeReply>(channel_, loop_, group_, "NextRange", limits,
                                                             &CoordinatorChannel::NextRange, request);
}

Future<v1::PinReply> CoordinatorCalls::Pin(const v1::PinRequest& request, const CallLimits& limits) {
  return StartCall<v1::PinRequest, v1::PinReply>(channel_, loop_, group_, "Pin", limits,
                                                 &CoordinatorChannel::Pin, request);
}

Future<v1::UnpinReply> CoordinatorCalls::Unpin(const v1::UnpinRequest& request, const CallLimits& limits) {
  return StartCall<v1::UnpinRequest, v1::UnpinReply>(channel_, loop_, group_, "Unpin", limits,
                                                     &CoordinatorChannel::Unpin, request);
}

Future<v1::ReportReply> CoordinatorCalls::Report(const v1::ReportRequest& request, const CallLimits& limits) {
  return StartCall<v1::ReportRequest, v1::ReportReply>(channel_, loop_, group_, "Report", limits,
                                                       &CoordinatorChannel::Report, request);
}

absl::Status CoordinatorCalls::Leave(const v1::LeaveRequest& request, const CallLimits& limits) {
  CallGroup group;
  const Future<v1::LeaveReply> left = StartCall<v1::LeaveRequest, v1::LeaveReply>(
      channel_, loop_, group, "Leave", limits, &CoordinatorChannel::Leave, request);
  left.Get().status().IgnoreError();
  group.WaitUntilEmpty();
  return left.Get().status();
}

}  // namespace weir
