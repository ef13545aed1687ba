#include "client/call_retry.h"

#include <algorithm>

#include "absl/strings/str_cat.h"

namespace weir {

absl::Status CallRetry::Late() const {
  return absl::DeadlineExceededError(
      absl::StrCat(peer_, " did not answer ", what_, " within ", seconds(), " s"));
}

CallRetry::Verdict CallRetry::Judge(const absl::Status& failure) {
  if (!absl::IsUnavailable(failure) && !absl::IsCancelled(failure)) {
    return {absl::Status(failure.code(), absl::StrCat(peer_, ": ", failure.message())), {}};
  }
  const Clock::time_point now = Clock::now();
  // A try that lasted longer than a peer may be away had reached it: the count starts anew.
  if (!unreachable_since_.has_value() || now - try_started_ > limits_.unreachable) {
    unreachable_since_ = now;
    backoff_.Reset();
  }
  const auto left = *unreachable_since_ + limits_.unreachable - now;
  if (left <= left.zero() || now >= deadline_) {
    return {absl::UnavailableError(absl::StrCat(peer_, " was lost: ", failure.message())), {}};
  }
  return {absl::OkStatus(), std::min<std::chrono::nanoseconds>(backoff_.Next(), left)};
}

}  // namespace weir
