// The part of Shard that keeps its log: a decision takes effect once its record is durable, and a restored
// shard replays the records.
#include <optional>
#include <utility>

#include "absl/strings/str_cat.h"
#include "common/base/status_macros.h"
#include "common/protocol/job_failure.h"
#include "common/telemetry/logging.h"
#include "ps_server/shard/shard.h"

namespace weir {

bool Shard::CanDecide(const v1::PushRequest& header) {
  return log_.kept() ? log_.HasTurn(header) : MakeRoom();
}

void Shard::Decide(Decision decision) {
  if (!log_.kept()) return TakeEffect(decision);
  log_.Append(std::move(decision), store_->count());
}

void Shard::ApplyDurable() {
  for (const Decision* next = log_.NextDurable();
       next != nullptr && (next->verdict.outcome != v1::OK || MakeRoom()); next = log_.NextDurable()) {
    TakeEffect(log_.Take());
  }
  while (const std::optional<v1::ControlMessage> message = log_.NextDeferred()) Handle(*message);
}

void Shard::FailLog(const absl::Status& status) {
  if (!log_.Fail(status)) return;
  over_ = true;
  const std::string why =
      absl::StrCat("shard ", install_.shard(), " cannot write its log: ", std::string(status.message()));
  failure_ = log_.taken() ? LostPeer(why) : StorageFailure(why);
  LogError(failure_.message());
  // The shard must not acknowledge the pending pushes, since their records may not be on disk.
  FailAll(v1::JOB_OVER, std::string(failure_.message()));
  log_.Abandon();
  ReportFailed();
}

void Shard::ReportFailed() {
  v1::ShardReport report;
  report.mutable_failed()->set_error(std::string(failure_.message()));
  report.mutable_failed()->set_replaced(log_.taken());
  Report(std::move(report));
}

absl::Status Shard::LoadLog(const v1::Install& install, const LogPosition& position, uint64_t generation,
                            Loaded* loaded) const {
  const std::string& directory = options_.config.checkpoint().directory();
  PushLog::Options options;
  options.files = options_.files;
  options.folder = LogFolder(directory, install.shard(), install.num_shards());
  options.description.set_shard(install.shard());
  options.description.set_num_shards(install.num_shards());
  options.description.set_model_hash(loaded->store->model().Hash());
  options.description.set_checkpoint(position.checkpoint);
  options.description.set_coordinator(install.coordinator());
  options.description.set_install(install.number());
  options.executor = options_.background;
  // This thread may have hung until now, and the log may belong to another process.
  const auto still_wanted = [&] {
    return generation == generation_
               ? absl::OkStatus()
               : absl::AbortedError("this incarnation of the shard was replaced before it started");
  };
  WEIR_RETURN_IF_ERROR(still_wanted());
  if (logs()) {
    WEIR_RETURN_IF_ERROR(options_.files->MakeFolder(ParentFolder(options.folder)));
    WEIR_RETURN_IF_ERROR(options_.files->SyncFolder(directory));
  }
  // An earlier incarnation may have kept a log although this one keeps none, and may still run.
  if (logs() || options_.files->List(options.folder).ok()) {
    WEIR_RETURN_IF_ERROR(ClaimPushLog(*options_.files, options.folder, options.description));
  }
  WEIR_ASSIGN_OR_RETURN(Replayed replayed, ReplayLog(*options_.files, directory, install.shard(),
                                                     install.num_shards(), position, *loaded->store));
  loaded->records = std::move(replayed.records);
  if (!logs()) return absl::OkStatus();
  options.segment = replayed.end.next_segment;
  options.description.set_previous_bytes(replayed.end.previous_bytes);
  WEIR_RETURN_IF_ERROR(still_wanted());
  WEIR_ASSIGN_OR_RETURN(loaded->log, PushLog::Begin(std::move(options)));
  return absl::OkStatus();
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
