#include "client/call.h"

#include "absl/strings/str_cat.h"
#include "common/protocol/job_failure.h"

namespace weir {

absl::Status CallGroup::Add(Call* call) {
  MutexLock lock(mutex_);
  if (closed_.ok()) calls_.push_back(call);
  return closed_;
}

void CallGroup::Remove(Call* call) {
  MutexLock lock(mutex_);
  calls_.erase(std::remove(calls_.begin(), calls_.end(), call), calls_.end());
  // Under the lock: the waiter may destroy the group as soon as it sees it empty.
  if (calls_.empty()) empty_.NotifyAll();
}

void CallGroup::Close(const absl::Status& why) {
  MutexLock lock(mutex_);
  if (!closed_.ok()) return;
  closed_ = why;
  for (Call* call : calls_) call->Cancel(why);
}

void CallGroup::WaitUntilEmpty() {
  MutexLock lock(mutex_);
  while (!calls_.empty()) empty_.Wait(mutex_);
}

absl::Status CallRetry::Late() const {
  return absl::DeadlineExceededError(
      absl::StrCat(peer_, " did not answer ", what_, " within ", seconds(), " s"));
}

CallRetry::Verdict CallRetry::Judge(const absl::Status& failure) {
  if (!absl::IsUnavailable(failure) && !absl::IsCancelled(failure)) {
    return {Reworded(failure, absl::StrCat(peer_, ": ", failure.message())), {}};
  }
  const absl::Time now = awake_.Now();
  const absl::Duration unreachable = absl::FromChrono(limits_.unreachable);
  // A try that lasted longer than `unreachable` had reached the peer, so the time starts anew.
  if (!unreachable_since_.has_value() || try_->length() > unreachable) {
    unreachable_since_ = now;
    backoff_.Reset();
  }
  const absl::Duration left = *unreachable_since_ + unreachable - now;
  if (!try_->interrupted() && (left <= absl::ZeroDuration() || now >= deadline_)) {
    return {absl::UnavailableError(absl::StrCat(peer_, " was lost: ", failure.message())), {}};
  }
  const absl::Duration wait = std::min(absl::FromChrono(backoff_.Next()), left);
  return {absl::OkStatus(), absl::ToChronoNanoseconds(std::max(wait, absl::ZeroDuration()))};
}

}  // namespace weir
