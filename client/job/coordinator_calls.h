#pragma once

#include <chrono>
#include <memory>
#include <optional>
#include <utility>

#include "absl/status/status.h"
#include "absl/time/time.h"
#include "client/call.h"
#include "client/job/transport.h"
#include "common/threads/future.h"
#include "proto/coordinator.pb.h"

namespace weir {

// The calls that a member of the job makes to the coordinator, each retried under its own key until its
// limits are reached (client/call.h). The heartbeat is separate (client/job/heartbeat.h).
// Thread-safe. Outlives its calls, as do channel, loop and group.
class CoordinatorCalls {
 public:
  CoordinatorCalls(CoordinatorChannel& channel, EventLoop& loop, CallGroup& group)
      : channel_(channel), loop_(loop), group_(group) {}

  template <typename Request>
  Future<CoordinatorChannel::ReplyOf<Request>> Start(const Request& request, const CallLimits& limits) {
    return StartIn(group_, request, limits);
  }
  // Waits for the answer. The call is not in the group, because it is sent when all other calls have been
  // ended.
  absl::Status Leave(const v1::LeaveRequest& request, const CallLimits& limits) {
    CallGroup group;
    const Future<v1::LeaveReply> left = StartIn(group, request, limits);
    left.Get().status().IgnoreError();
    group.WaitUntilEmpty();
    return left.Get().status();
  }

 private:
  template <typename Request>
  class RetriedCall;
  template <typename Request>
  Future<CoordinatorChannel::ReplyOf<Request>> StartIn(CallGroup& group, const Request& request,
                                                       const CallLimits& limits) {
    return std::make_shared<RetriedCall<Request>>(channel_, loop_, group, limits, request)->Start();
  }

  CoordinatorChannel& channel_;
  EventLoop& loop_;
  CallGroup& group_;
};

// One call: as many tries as it takes, one after another, under the same key. It ends exactly once, on the
// event loop or, when the group is closed, within Start(). All but Start() and Cancel() runs on the event
// loop. Keeps itself alive until it has ended.
template <typename Request>
class CoordinatorCalls::RetriedCall final : public Call,
                                            public std::enable_shared_from_this<RetriedCall<Request>> {
 public:
  using Reply = CoordinatorChannel::ReplyOf<Request>;

  RetriedCall(CoordinatorChannel& channel, EventLoop& loop, CallGroup& group, const CallLimits& limits,
              const Request& request)
      : channel_(channel),
        loop_(loop),
        group_(group),
        request_(request),
        retry_(CoordinatorChannel::MethodOf<Request>(), channel.name(), limits, loop.awake(), loop.real(),
               [&loop] { return loop.Random(); }),
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
  // The deadlines of a channel may be rounded to milliseconds.
  static constexpr std::chrono::milliseconds kRounding{10};

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
    try_ = channel_.Start(request_, left, [self = this->shared_from_this()](absl::StatusOr<Reply> reply) {
      self->OnAnswer(std::move(reply));
    });
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

}  // namespace weir
