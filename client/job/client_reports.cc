// What a program tells ps:0 beside its work: metrics, and that the job shall end.
#include <algorithm>
#include <string>

#include "absl/strings/str_cat.h"
#include "client/job/client_impl.h"

namespace weir {

absl::Status ClientImpl::Log(absl::Span<const LoggedValue> values, bool last, double weight) {
  if (options_.reader) return absl::FailedPreconditionError("a reader logs no metrics; a worker does");
  MutexLock lock(mutex_);
  const double examples = static_cast<double>(std::max<uint64_t>(1, work_.newest_examples()));
  return metrics_.Add(values, last, weight == 0 ? examples : weight, work_.newest_clock());
}

absl::Status ClientImpl::LogScores(absl::string_view name, absl::Span<const float> scores,
                                   absl::Span<const float> labels) {
  if (options_.reader) return absl::FailedPreconditionError("a reader logs no metrics; a worker does");
  MutexLock lock(mutex_);
  return metrics_.AddScores(name, scores, labels);
}

absl::Status ClientImpl::Stop(const std::string& reason) {
  v1::StopRequest request;
  *request.mutable_caller() = CallerNow();
  request.set_reason(reason);
  absl::Status status = coordinator_.Start(request, limits()).Get().status();
  if (!absl::IsUnimplemented(status)) return status;
  return absl::FailedPreconditionError(absl::StrCat(
      coordinator_channel_->name(), " cannot stop a job: that needs version 1.10 of the protocol, ",
      "and it speaks an earlier one. Upgrade ps:0"));
}

}  // namespace weir
