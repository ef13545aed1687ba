#include "client/grpc_call.h"

#include <chrono>
#include <utility>

#include "client/grpc_channel.h"
#include "common/grpc_token.h"

namespace weir {

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
    poller_.RunSoon([self = shared_from_this()] { self->Try(); });
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
      context_->set_deadline(std::chrono::system_clock::now() +
                             (retry_.deadline() - CallRetry::Clock::now()));
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
  // Our own deadline, not the peer's, which would say whom it waited for. gRPC's clock is rounded to
  // milliseconds.
  const CallRetry::Clock::time_point now = CallRetry::Clock::now();
  if (absl::IsDeadlineExceeded(status) && now + std::chrono::milliseconds(10) >= retry_.deadline()) {
    return retry_.Late();
  }
  const CallRetry::Verdict verdict = retry_.Judge(status);
  if (!verdict.error.ok()) return verdict.error;
  poller_.RunAt(now + verdict.wait, [self = shared_from_this()] { self->Try(); });
  return std::nullopt;
}

void GrpcCall::End(const absl::Status& status) {
  Finish(status);
  group_.Remove(this);
}

}  // namespace weir
