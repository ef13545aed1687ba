// The part of Shard that takes initial values, which a worker uploads as a push, and keeps them to itself
// until the coordinator has those of every shard.
#include <utility>

#include "absl/strings/str_cat.h"
#include "common/protocol/job_failure.h"
#include "common/telemetry/logging.h"
#include "ps_server/shard/shard.h"

namespace weir {

absl::Status Shard::CheckUpload(const v1::PushRequest& header) const {
  if (absl::Status status = CheckModel(header); !status.ok()) return status;
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

std::optional<absl::StatusOr<v1::PushReply>> Shard::AnswerUpload(const v1::PushRequest& header) const {
  if (over_) return NewReply(v1::JOB_OVER, std::string(failure_.message()));
  if (absl::Status status = CheckUpload(header); !status.ok()) return status;
  const v1::Caller& caller = header.caller();
  switch (members_.Check(caller)) {
    case ShardMembers::Standing::kUnknownYet:
      return absl::UnavailableError("this shard does not know the caller's membership epoch yet");
    case ShardMembers::Standing::kFenced:
      return NewReply(v1::FENCED, Fenced(caller));
    case ShardMembers::Standing::kLive:
      break;
  }
  const bool uploads = caller.incarnation() == initial_.uploader();
  if (!initial_.awaited()) {
    if (uploads) return NewReply(v1::OK);
    return NewReply(v1::REFUSED, "this shard has its initial values; the upload changed nothing");
  }
  if (uploads) return std::nullopt;
  if (caller.epoch() > members_.epoch()) {
    return absl::UnavailableError("this shard does not know yet that the caller uploads the initial values");
  }
  return absl::InvalidArgumentError(
      absl::StrCat("initial_values: ", members_.TaskOf(caller.worker()), " (incarnation ",
                   caller.incarnation(), ") is not the member that uploads them, which is incarnation ",
                   initial_.uploader(), " (Membership.uploader)"));
}

void Shard::HandleBeginUpload(HeldPush push) {
  if (const auto answer = AnswerUpload(push.header); answer.has_value()) {
    return push.done(answer->ok() ? absl::StatusOr<PushBegin>(**answer) : answer->status());
  }
  if (initial_.staged()) return AwaitOthers(push.session, AsPush(std::move(push.done)));
  std::shared_ptr<const void> presence = arrivals_.Add(KeyOf(push.header));
  if (presence == nullptr) {
    return push.done(absl::UnavailableError("the same upload is arriving twice already; send it again"));
  }
  push.done(std::make_unique<PushArrival>(std::move(push.header), nullptr, store_->TakeSlab(), tables_,
                                          std::move(presence), options_.chunk_unit));
}

void Shard::HandleUpload(Session session, std::unique_ptr<PushArrival> arrival, PushDone done) {
  if (auto answer = AnswerUpload(arrival->header()); answer.has_value()) {
    return done(answer->ok() ? absl::StatusOr<PushAnswer>(PushAnswer{**std::move(answer), {}})
                             : answer->status());
  }
  if (const auto& bad = arrival->non_finite(); bad.has_value()) {
    return done(absl::InvalidArgumentError(absl::StrCat(
        NonFiniteValue(absl::StrCat("the initial value of ", store_->Describe(bad->at)), bad->value),
        "; the upload changed nothing")));
  }
  if (!initial_.staged()) {
    store_->SetInitialValues(arrival->TakeGradient().get());
    initial_.Stage();
    v1::ShardReport report;
    report.mutable_values()->set_uploader(initial_.uploader());
    Report(std::move(report));
  }
  AwaitOthers(session, std::move(done));
}

void Shard::AwaitOthers(Session session, PushDone done) {
  const auto before = initial_.Wait({session, std::move(done), options_.clock->Now()});
  if (before.has_value()) before->done(absl::CancelledError("the same upload came again"));
}

void Shard::FollowUpload(const v1::SetMembership& message) {
  if (message.values_of() == 0) {
    if (message.membership().uploader() == initial_.uploader()) return;
    const auto before = initial_.SetUploader(message.membership().uploader());
    if (before.has_value()) {
      before->done(PushAnswer{NewReply(v1::FENCED, "another member uploads the initial values now"), {}});
    }
    return;
  }
  if (!initial_.staged() || initial_.uploader() != message.values_of()) {
    LogError("the coordinator takes the initial values of incarnation ", message.values_of(),
             " for whole, but this shard has none of it");
    return;
  }
  LogInfo("the initial values are there");
  waits_.Mark();
  if (const auto waiter = initial_.Settle(); waiter.has_value()) {
    waiter->done(PushAnswer{NewReply(v1::OK), {}});
  }
}

}  // namespace weir
