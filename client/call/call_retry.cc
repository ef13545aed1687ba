#include "client/call/call_retry.h"

#include <algorithm>

#include "absl/strings/str_cat.h"
#include "common/protocol/job_failure.h"

namespace weir {

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
