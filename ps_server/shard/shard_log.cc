// The part of Shard that keeps its log: a decision takes effect once its record is durable, and a restored
// shard replays the records.
#include <optional>
#include <utility>

#include "absl/strings/str_cat.h"
#include "common/protocol/job_failure.h"
#include "common/telemetry/logging.h"
#include "ps_server/shard/shard.h"

namespace weir {

bool Shard::CanDecide(const v1::PushRequest& header) {
  // The dense values need no room before the commit.
  if (mode_.commits_steps) return room_.MakeForRows();
  if (!log_.kept()) return room_.Make();
  // What is decided must not wait for memory of rows: the checkpoint that has it may wait for the decision.
  return log_.HasTurn(header) && room_.MakeForRows();
}

void Shard::Decide(Decision decision) {
  if (!log_.kept()) return TakeEffect(decision);
  log_.Append(std::move(decision), store_->count());
}

void Shard::ApplyDurable() {
  for (const Decision* next = log_.NextDurable();
       next != nullptr && (next->verdict.outcome != v1::OK || room_.MakeForWeights());
       next = log_.NextDurable()) {
    TakeEffect(log_.Take());
  }
  while (const std::optional<v1::ControlMessage> message = log_.NextDeferred()) Handle(*message);
}

void Shard::FailLog(const absl::Status& status) {
  if (!log_.Fail(status)) return;
  const std::string why =
      absl::StrCat("shard ", install_.shard(), " cannot write its log: ", std::string(status.message()));
  Fail(log_.taken() ? LostPeer(why) : StorageFailure(why));
  // The shard must not acknowledge the pending pushes, since their records may not be on disk.
  log_.Abandon();
}

void Shard::Fail(const absl::Status& failure) {
  if (failed_) return;
  failed_ = true;
  over_ = failure;
  LogError(over_->message());
  FailAll(JobOver());
  ReportFailed();
}

void Shard::ReportFailed() {
  v1::ShardReport report;
  report.mutable_failed()->set_error(std::string(over_->message()));
  report.mutable_failed()->set_replaced(log_.taken());
  report.mutable_failed()->set_kind(KindOf(*over_));
  Report(std::move(report));
}

void Shard::Replay(const v1::LoggedPush& record) {
  if (record.has_membership()) {
    members_.Follow(record.membership(), *policy_);
    return;
  }
  const v1::PushRequest& push = record.push();
  members_.FollowRecord(push.caller(), *policy_);
  // The incarnation that wrote this record had declared lost those of the worker's clocks that it did not
  // know.
  DeclareLost(push.caller().worker(), push.clock());
  v1::PushReply reply;
  reply.set_outcome(record.outcome());
  reply.set_reason(record.reason());
  reply.mutable_version()->set_incarnation(push.base().incarnation());
  reply.mutable_version()->set_count(record.version());
  Account(push, &reply);
}

}  // namespace weir
