// What a program tells ps:0 beside its work: metrics, and that the job shall end.
#include <string>

#include "absl/strings/str_cat.h"
#include "client/job/client_impl.h"

namespace weir {

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
