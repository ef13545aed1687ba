#include "client/grpc/grpc_call.h"

#include <chrono>
#include <utility>

#include "client/grpc/grpc_channel.h"
#include "common/rpc/grpc_status.h"
#include "common/rpc/grpc_token.h"

namespace weir {
namespace {

// gRPC's clock is rounded to milliseconds.
constexpr std::chrono::milliseconds kRounding{10};

}  // namespace

void GrpcCall::Start() {
  if (absl::Status closed = group_.Add(this); !closed.ok()) {
    {
      MutexLock lock(mutex_);
      over_ = true;  // whoever is told so may cancel it
    }
    Finish(closed);
    return;
  }
  Try();
}

void GrpcCall::Cancel(const absl::Status& why) {
  MutexLock lock(mutex_);
  if (!cancelled_.ok()) return;
  cancelled_ = why;
  // Between two tries, the next one ends the call at once.
  if (context_ != nullptr) {
    context_->TryCancel();
  } else {
    poller_.Post([self = shared_from_this()] { self->Try(); });
  }
}

void GrpcCall::Try() {
  absl::Status cancelled;
  {
    MutexLock lock(mutex_);
    // Ended, or under way.
    if (over_ || context_ != nullptr) return;
    cancelled = cancelled_;
    over_ = !cancelled.ok();
    if (cancelled.ok()) {
      retry_.TryStarts();
      context_ = std::make_unique<grpc::ClientContext>();
      const std::chrono::nanoseconds left = retry_.left();
      try_deadline_ = GrpcPoller::Steady::now() + left;
      context_->set_deadline(std::chrono::system_clock::now() + left);
      SetToken(token_, context_.get());
      self_ = shared_from_this();
      StartTry(context_.get(), poller_.queue(), &status_, static_cast<GrpcPoller::Event*>(this));
    }
  }
  if (!cancelled.ok()) End(cancelled);
}

void GrpcCall::OnEvent(bool /*ok*/) {
  std::shared_ptr<GrpcCall> self;
  std::optional<absl::Status> end;
  {
    MutexLock lock(mutex_);
    self.swap(self_);
    context_.reset();
    end = Judge(FromGrpc(status_));
    over_ = end.has_value();
  }
  if (end.has_value()) End(*end);
}

std::optional<absl::Status> GrpcCall::Judge(const absl::Status& status) {
  if (status.ok()) return status;
  if (!cancelled_.ok()) return cancelled_;
  const GrpcPoller::Steady::time_point now = GrpcPoller::Steady::now();
  std::chrono::nanoseconds wait{};
  // Our own deadline, not the peer's, which would say whom it waited for.
  if (absl::IsDeadlineExceeded(status) && now + kRounding >= try_deadline_) {
    if (retry_.left() <= kRounding) return retry_.Late();
    // This process was stopped meanwhile: it asks anew.
  } else {
    const CallRetry::Verdict verdict = retry_.Judge(status);
    if (!verdict.error.ok()) return verdict.error;
    wait = verdict.wait;
  }
  poller_.RunAt(now + wait, [self = shared_from_this()] { self->Try(); });
  return std::nullopt;
}

void GrpcCall::End(const absl::Status& status) {
  Finish(status);
  group_.Remove(this);
}

}  // namespace weir
