// The part of Shard that keeps its log: what is decided on takes effect once it is there, and a restored
// shard does it again.
#include <algorithm>
#include <iterator>
#include <utility>

#include "absl/strings/str_cat.h"
#include "common/base/status_macros.h"
#include "common/protocol/job_failure.h"
#include "common/telemetry/logging.h"
#include "ps_server/shard/shard.h"

namespace weir {

bool Shard::OnItsWay(uint32_t worker) const {
  return std::any_of(logging_.begin(), logging_.end(), [worker](const Decision& decision) {
    return decision.header.caller().worker() == worker;
  });
}

bool Shard::CanDecide(const v1::PushRequest& header) {
  if (log_ == nullptr) return MakeRoom();
  // What waits in deferred_ comes first: no decision is made before it that takes effect after it.
  return deferred_.empty() && std::none_of(logging_.begin(), logging_.end(), [&](const Decision& other) {
           return other.header.caller().worker() == header.caller().worker() ||
                  (header.batch_plus_one() != 0 && other.header.batch_plus_one() == header.batch_plus_one());
         });
}

void Shard::Decide(Decision decision) {
  if (log_ == nullptr) return TakeEffect(decision);
  v1::LoggedPush record;
  *record.mutable_push() = decision.header;
  record.set_outcome(decision.verdict.outcome);
  record.set_reason(decision.verdict.reason);
  if (decision.verdict.outcome == v1::OK) {
    const auto before = std::count_if(logging_.begin(), logging_.end(), [](const Decision& earlier) {
      return earlier.verdict.outcome == v1::OK;
    });
    record.set_version(store_->count() + static_cast<uint64_t>(before) + 1);
  }
  logging_.push_back(std::move(decision));
  Decision& logged = logging_.back();
  // The entry stays until it is durable, and a list's entries do not move.
  log_->Append(std::move(record), logged.gradient, logged.header.elements(),
               WhenLogged([&logged] { logged.durable = true; }));
}

PushLog::Done Shard::WhenLogged(std::function<void()> then) {
  if (writes_++ == 0) log_moved_ = options_.clock->Now();
  return [this, then = std::move(then)](const absl::Status& status) {
    queue_.Post([this, then, status] {
      --writes_;
      log_moved_ = options_.clock->Now();
      if (!status.ok()) {
        FailLog(status);
      } else if (!log_failed_) {
        then();
      }
      Wake();
    });
  };
}

void Shard::Settle() {
  while (!logging_.empty() && logging_.front().durable &&
         (logging_.front().verdict.outcome != v1::OK || MakeRoom())) {
    const Decision decision = std::move(logging_.front());
    logging_.pop_front();
    TakeEffect(decision);
  }
  while (writes_ == 0 && logging_.empty() && !deferred_.empty()) {
    const v1::ControlMessage message = std::move(deferred_.front());
    deferred_.pop_front();
    Handle(message);
  }
}

void Shard::FailLog(const absl::Status& status) {
  if (log_failed_) return;
  log_failed_ = over_ = true;
  log_taken_ = absl::IsAlreadyExists(status);
  const std::string why =
      absl::StrCat("shard ", install_.shard(), " cannot write its log: ", std::string(status.message()));
  failure_ = log_taken_ ? LostPeer(why) : StorageFailure(why);
  LogError(failure_.message());
  // Whether their records are on the disk is open; nobody is told that they are.
  FailAll(v1::JOB_OVER, std::string(failure_.message()));
  logging_.clear();
  ReportFailed();
}

void Shard::ReportFailed() {
  v1::ShardReport report;
  report.mutable_failed()->set_error(std::string(failure_.message()));
  report.mutable_failed()->set_replaced(log_taken_);
  Report(std::move(report));
}

uint64_t Shard::Rotate(uint64_t step, std::function<void()> then) {
  const uint64_t segment = log_->Rotate(step + 1, WhenLogged(std::move(then)));
  log_segments_[step] = segment;
  return segment;
}

void Shard::DropLogBefore(uint64_t step) {
  const auto found = log_segments_.find(step);
  if (log_ == nullptr || found == log_segments_.end()) return;
  log_->DropBefore(found->second);
  log_segments_.erase(log_segments_.begin(), std::next(found));
}

absl::Status Shard::LoadLog(const v1::Install& install, const LogPosition& position, uint64_t era,
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
  // It may have hung until now, and the log be another process's.
  const auto still_wanted = [&] {
    return era == era_ ? absl::OkStatus()
                       : absl::AbortedError("this life of the shard has ended before it began");
  };
  WEIR_RETURN_IF_ERROR(still_wanted());
  if (logs()) {
    WEIR_RETURN_IF_ERROR(options_.files->MakeFolder(ParentFolder(options.folder)));
    WEIR_RETURN_IF_ERROR(options_.files->SyncFolder(directory));
  }
  // A life before this one may have kept a log where this one keeps none, and may still run.
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
    InstallMembers(record.membership());
    return;
  }
  const v1::PushRequest& push = record.push();
  MemberState& member = members_[push.caller().worker()];
  if (member.incarnation != push.caller().incarnation()) {
    policy_->Forget(push.caller().worker());
    member = MemberState();
    member.incarnation = push.caller().incarnation();
  }
  // What the life that wrote this did not know of the worker's clocks it had declared lost.
  DeclareLost(push.caller().worker(), push.clock());
  v1::PushReply reply;
  reply.set_outcome(record.outcome());
  reply.set_reason(record.reason());
  reply.mutable_version()->set_incarnation(push.base().incarnation());
  reply.mutable_version()->set_count(record.version());
  Account(push, &reply);
}

}  // namespace weir
