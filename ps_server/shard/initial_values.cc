#include "ps_server/shard/initial_values.h"

#include "absl/strings/str_cat.h"
#include "common/protocol/job_failure.h"
#include "common/telemetry/logging.h"

namespace weir {

absl::Status InitialValues::CheckHeader(const v1::PushRequest& header) {
  if (header.dtype() != v1::F32) {
    return absl::InvalidArgumentError(
        absl::StrCat("dtype: ", header.dtype(), "; initial values are float32, F32 (0)"));
  }
  if (header.rows_size() > 0) {
    return absl::InvalidArgumentError("rows: not with initial values; those of rows are the servers' own");
  }
  if (!header.refused().empty()) {
    return absl::InvalidArgumentError("refused: not with initial values, which are sent or not begun");
  }
  return absl::OkStatus();
}

std::optional<absl::StatusOr<Verdict>> InitialValues::Answer(const v1::Caller& caller,
                                                             const ShardMembers& members) const {
  const bool uploads = caller.incarnation() == uploader_;
  if (!awaited_) {
    if (uploads) return Verdict();
    return Verdict{v1::REFUSED, "this shard has its initial values; the upload changed nothing"};
  }
  if (uploads) return std::nullopt;
  if (caller.epoch() > members.epoch()) {
    return absl::UnavailableError("this shard does not know yet that the caller uploads the initial values");
  }
  return absl::InvalidArgumentError(absl::StrCat(
      "initial_values: ", members.TaskOf(caller.worker()), " (incarnation ", caller.incarnation(),
      ") is not the member that uploads them, which is incarnation ", uploader_, " (Membership.uploader)"));
}

absl::Status InitialValues::Stage(PushArrival& upload, BlockStore& store) {
  if (const auto& bad = upload.non_finite(); bad.has_value()) {
    return absl::InvalidArgumentError(absl::StrCat(
        NonFiniteValue(absl::StrCat("the initial value of ", store.Describe(bad->at)), bad->value),
        "; the upload changed nothing"));
  }
  store.SetInitialValues(upload.TakeGradient().get());
  staged_ = true;
  return absl::OkStatus();
}

v1::ShardReport InitialValues::Report() const {
  v1::ShardReport report;
  report.mutable_values()->set_uploader(uploader_);
  return report;
}

void InitialValues::Wait(Waiter waiter) {
  const auto before = std::exchange(waiter_, std::move(waiter));
  if (before.has_value()) before->done(absl::CancelledError("the same upload came again"));
}

std::optional<Verdict> InitialValues::Follow(const v1::SetMembership& message) {
  if (message.values_of() == 0) {
    if (message.membership().uploader() == uploader_) return std::nullopt;
    uploader_ = message.membership().uploader();
    staged_ = false;
    return Verdict{v1::FENCED, "another member uploads the initial values now"};
  }
  if (!staged_ || uploader_ != message.values_of()) {
    LogError("the coordinator takes the initial values of incarnation ", message.values_of(),
             " for whole, but this shard has none of it");
    return std::nullopt;
  }
  LogInfo("the initial values are there");
  awaited_ = false;
  return Verdict();
}

}  // namespace weir
