#include "ps_server/coordinator/job_end.h"

namespace weir {

bool JobEnd::Suspect(absl::Status failure, absl::Time until) {
  if (suspected_.has_value()) return false;
  suspected_ = Suspected{std::move(failure), until};
  return true;
}

absl::Status JobEnd::ForJoin() const {
  // Not Unavailable: the caller would try again, find no coordinator, and hide the reason.
  return absl::IsUnavailable(failure_) ? absl::AbortedError(failure_.message()) : failure_;
}

absl::Status JobEnd::ForCall() const {
  return absl::UnavailableError(failure_.ok() ? "the job is done" : failure_.message());
}

}  // namespace weir
