#include "client/grpc_call.h"

#include <algorithm>
#include <utility>

#include "absl/strings/str_cat.h"
#include "client/grpc_channel.h"

namespace weir {
namespace {

std::string Seconds(std::chrono::nanoseconds time) {
  return absl::StrCat(std::chrono::duration<double>(time).count(), " s");
}

}  // namespace

void GrpcCall::Start() {
  if (absl::Status closed = group_.Add(this); !closed.ok()) {
    Finish(closed);
    return;
  }
  {
    MutexLock lock(mutex_);
    deadline_ = Clock::now() + limits_.total;
  }
  Try();
}

void GrpcCall::Cancel(const absl::Status& why) {
  MutexLock lock(mutex_);
  if (!cancelled_.ok()) return;
  cancelled_ = why;
  // Neither runs callbacks on this thread.
  if (context_ != nullptr) context_->TryCancel();
  if (alarm_ != nullptr) alarm_->Cancel();
}

void GrpcCall::Try() {
  grpc::ClientContext* context = nullptr;
  absl::Status cancelled;
  {
    MutexLock lock(mutex_);
    cancelled = cancelled_;
    if (cancelled.ok()) {
      try_started_ = Clock::now();
      context_ = std::make_unique<grpc::ClientContext>();
      context_->set_deadline(std::chrono::system_clock::now() + (deadline_ - try_started_));
      context = context_.get();
    }
  }
  if (!cancelled.ok()) {
    End(cancelled);
  } else {
    StartTry(context);
  }
}

std::optional<absl::Status> GrpcCall::Judge(const absl::Status& status) {
  if (!cancelled_.ok()) return cancelled_;
  const Clock::time_point now = Clock::now();
  // Our own deadline, not the peer's, which would say whom it waited for. gRPC's clock is rounded to
  // milliseconds.
  if (absl::IsDeadlineExceeded(status) && now + std::chrono::milliseconds(10) >= deadline_) {
    return absl::DeadlineExceededError(
        absl::StrCat(peer_, " did not answer ", what_, " within ", Seconds(limits_.total)));
  }
  if (!absl::IsUnavailable(status) && !absl::IsCancelled(status)) {
    return absl::Status(status.code(), absl::StrCat(peer_, ": ", status.message()));
  }
  // A try that lasted longer than a peer may be away had reached it: the count starts anew.
  if (!unreachable_since_.has_value() || now - try_started_ > limits_.unreachable) {
    unreachable_since_ = now;
    backoff_.Reset();
  }
  if (now - *unreachable_since_ < limits_.unreachable && now < deadline_) return std::nullopt;
  return absl::UnavailableError(absl::StrCat(peer_, " was lost: ", status.message()));
}

void GrpcCall::TryDone(const absl::Status& status, Next next) {
  std::optional<absl::Status> end;
  {
    MutexLock lock(mutex_);
    context_.reset();
    if (status.ok() && next == Next::kEnd) {
      end = status;
    } else if (!status.ok()) {
      end = Judge(status);
      if (!end.has_value()) {
        const Clock::time_point now = Clock::now();
        const auto wait = std::min<std::chrono::nanoseconds>(
            backoff_.Next(),
            std::max<std::chrono::nanoseconds>(*unreachable_since_ + limits_.unreachable - now, {}));
        alarm_ = std::make_unique<grpc::Alarm>();
        alarm_->Set(std::chrono::system_clock::now() + wait, [self = shared_from_this()](bool /*in_time*/) {
          std::unique_ptr<grpc::Alarm> alarm;
          {
            MutexLock lock(self->mutex_);
            alarm = std::move(self->alarm_);
          }
          self->Try();
        });
        return;
      }
    }
  }
  if (end.has_value()) {
    End(*end);
  } else {
    Try();
  }
}

void GrpcCall::End(const absl::Status& status) {
  Finish(status);
  group_.Remove(this);
}

}  // namespace weir
