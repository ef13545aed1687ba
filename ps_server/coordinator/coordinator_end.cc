// The part of Coordinator that ends the job: drained, done or failed.
#include <algorithm>
#include <utility>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "common/protocol/job_failure.h"
#include "common/telemetry/logging.h"
#include "ps_server/coordinator/best_epoch.h"
#include "ps_server/coordinator/coordinator.h"

namespace weir {
namespace {

constexpr absl::Duration kSaveAgain = absl::Seconds(1);
// How long a job that has failed stays for members that have not left since.
constexpr absl::Duration kTellFailure = absl::Seconds(2);

absl::Status NothingLeft() {
  return absl::OutOfRangeError("the job's examples are done; there is nothing left to do");
}

}  // namespace

void Coordinator::StartDraining() {
  if (state_ != v1::RUNNING) return;
  state_ = v1::DRAINING;
  ended_ = now();
  LogInfo("all ", total_examples_, " examples are done");
  unsaved_since_.reset();
  if (checkpoints_ != nullptr) {
    SaveLast();
  } else {
    OnSaved();
  }
  Changed();
  ServeRanges();
  MaybeFinish();
}

void Coordinator::SaveLast() {
  next_save_ = now() + kSaveAgain;
  checkpoints_->Request(/*of_now=*/true, [this](const absl::StatusOr<v1::CheckpointReply>& reply) {
    if (state_ != v1::DRAINING || saved_last_) return;
    if (reply.ok()) {
      OnSaved();
      return MaybeFinish();
    }
    // A shard that is away is waited for elsewhere.
    if (!AllInstalled()) return unsaved_since_.reset();
    CannotSaveLast(std::string(reply.status().message()));
  });
}

void Coordinator::CannotSaveLast(const std::string& why) {
  const bool first = !unsaved_since_.has_value();
  if (first) unsaved_since_ = now();
  unsaved_why_ = why;
  const double limit = options_.config.checkpoint().save_wait_seconds();
  const absl::Duration left = *unsaved_since_ + absl::Seconds(limit) - now();
  const std::string done = absl::StrCat("all ", total_examples_, " examples are done, but ");
  if (left <= absl::ZeroDuration()) {
    return FailJob(StorageFailure(absl::StrCat(
        done, "they could not be saved within checkpoint.save_wait_seconds = ", limit, ": ", why,
        checkpoints_->newest().has_value()
            ? absl::StrCat("; once there is room, the job goes on from ", checkpoints_->newest_folder())
            : "")));
  }
  if (!first && now() < next_complaint_) return;
  next_complaint_ = now() + kComplaintInterval;
  LogWarning(done, "the job cannot be saved yet: ", why, "; it is tried again for another ",
             absl::FormatDuration(absl::Ceil(left, absl::Seconds(1))),
             " (checkpoint.save_wait_seconds = ", limit, "), make room meanwhile");
}

void Coordinator::OnSaved() {
  if (unsaved_since_.has_value()) LogInfo("the job is saved: there is room again");
  unsaved_since_.reset();
  saved_last_ = true;
  saved_at_ = now();
  for (Done<v1::LeaveReply>& leave : std::exchange(leaves_, {})) leave(v1::LeaveReply());
  TellNothingLeft();
}

absl::Status Coordinator::NothingLeftFor(const v1::JoinRequest& request) {
  named_servers_ = std::max(named_servers_, std::min(request.ps_addresses_size(), kMaxServers));
  if (request.role() == v1::WORKER && request.rank() < options_.workers) {
    told_.insert(request.rank());
    away_.erase(request.rank());
  }
  return NothingLeft();
}

void Coordinator::TellNothingLeft() {
  if (state_ != v1::DRAINING || !saved_last_ || AwaitsEvaluation()) return;
  for (auto it = waiting_.begin(); it != waiting_.end();) {
    if (it->request.role() != v1::WORKER) {
      ++it;
      continue;
    }
    it->done(NothingLeftFor(it->request));
    it = waiting_.erase(it);
  }
}

bool IsEndOf(const v1::JobConfig& config, const v1::CheckpointManifest& checkpoint) {
  const v1::CoordinatorState& job = checkpoint.job();
  if (!job.done()) return false;
  return job.total_batches() == SizeOf(config, job.train_examples()).batches ||
         !WhyStopped(config.evaluation(), {job.evaluations().begin(), job.evaluations().end()}).empty();
}

bool Coordinator::DoneBefore() const {
  return recoverable() && checkpoints_->newest().has_value() &&
         IsEndOf(options_.config, *checkpoints_->newest());
}

void Coordinator::EndAgain() {
  const v1::CoordinatorState& job = checkpoints_->newest()->job();
  if (job.total_batches() < total_batches_) {
    stopped_early_ = WhyStopped(options_.config.evaluation(), evaluations_->entries());
    SetSize({job.total_examples(), job.total_batches()});
  }
  LogInfo("all ", total_examples_, " examples were done before; the result is ",
          checkpoints_->newest_folder());
  ends_again_ = saved_last_ = true;
  state_ = v1::DRAINING;
  TrainingStarts();
  ended_ = started_;
  OpenLinks();
}

void Coordinator::MaybeFinish() {
  if (state_ != v1::DRAINING || final_ping_ > 0 || !members_.empty() || !readers_.empty()) return;
  if (!saved_last_ || !drain_.empty() || AwaitsEvaluation()) return;
  if (const std::vector<std::string> others = MayCome(); !others.empty()) {
    if (!std::exchange(said_lingering_, true)) {
      LogInfo("the job is done; waiting for ", absl::StrJoin(others, ", "),
              " to be told so, for a lease at most");
    }
    return;
  }
  if (ends_again_) return End();
  final_ping_ = PingShards();
}

std::vector<std::string> Coordinator::MayCome() const {
  std::vector<std::string> names;
  for (const auto& [rank, away] : away_) {
    const absl::Time until =
        away.disconnected ? away.since + kComesBack : std::max(away.since, saved_at_) + lease();
    if (now() < until) names.push_back(absl::StrCat(away.task, " (lost before)"));
  }
  if (now() >= linger_until_) return names;
  for (uint32_t rank = 0; rank < options_.workers; ++rank) {
    if (told_.count(rank) + gave_up_.count(rank) + away_.count(rank) > 0) continue;
    names.push_back(absl::StrCat(WorkerName(rank), " (not there yet)"));
  }
  return names;
}

void Coordinator::End() {
  if (over()) return;
  state_ = v1::DONE;
  v1::ControlMessage message;
  message.mutable_shutdown();
  Broadcast(message);
  Changed();
  AnswerParked(NothingLeft(), absl::FailedPreconditionError("the job is done"));
  options_.on_end(MakeStatus(), absl::OkStatus());
}

void Coordinator::FailJob(const absl::Status& failure, bool asked) {
  if (over()) {
    if (asked) untold_.clear();
    return EndOnceTold();
  }
  state_ = v1::FAILED;
  failure_ = failure;
  if (ended_ == absl::Time()) ended_ = now();
  if (asked) {
    LogInfo("the job ends: ", failure.message());
  } else {
    LogError(failure.message());
  }
  v1::ControlMessage message;
  SetFailure(failure, message.mutable_shutdown());
  Broadcast(message);
  // Who wants the job to end does not wait for others.
  if (!asked) NoteUntold();
  Changed();
  AnswerParked(RefuseJoin(), failure);
  tell_until_ = now() + kTellFailure;
  EndOnceTold();
}

void Coordinator::NoteUntold() {
  for (const auto& [rank, member] : members_) {
    const bool live = member.phase == Phase::kLive || member.phase == Phase::kIdle;
    if (live && !member.disconnected) untold_.insert(member.incarnation);
  }
  for (const auto& [id, reader] : readers_) untold_.insert(reader.incarnation);
}

void Coordinator::Told(uint64_t incarnation) {
  if (untold_.erase(incarnation) > 0) EndOnceTold();
}

void Coordinator::EndOnceTold() {
  if (!tell_until_.has_value() || (!untold_.empty() && now() < *tell_until_)) return;
  tell_until_.reset();
  options_.on_end(MakeStatus(), failure_);
}

void Coordinator::StepAside(const std::string& why) {
  if (over()) return;
  state_ = v1::FAILED;
  failure_ = Replaced(why);
  if (ended_ == absl::Time()) ended_ = now();
  LogError(failure_.message());
  // Calls that wait may find the other one where they called this one.
  const absl::Status away = absl::UnavailableError(failure_.message());
  AnswerParked(away, away);
  options_.on_end(MakeStatus(), failure_);
}

void Coordinator::FailUnlessReplaced(const absl::Status& failure) {
  if (failing_.has_value()) return;
  if (checkpoints_ == nullptr) return FailJob(failure);
  // Whoever fails is started again, and would take the job back.
  failing_ = Failing{failure, now() + kConfirmed};
  checkpoints_->Reserve(numbers_.reserved(), [this](const absl::Status& ours) {
    if (over()) return;
    return absl::IsAborted(ours) ? StepAside(std::string(ours.message())) : FailJob(failing_->failure);
  });
}

absl::Status Coordinator::RefuseJoin() const {
  // Not Unavailable, which asks for another try, which would find nobody and hide the reason.
  return absl::IsUnavailable(failure_) ? absl::AbortedError(failure_.message()) : failure_;
}

void Coordinator::AnswerParked(const absl::Status& joins, const absl::Status& others) {
  for (WaitingJoin& join : waiting_) join.done(joins);
  waiting_.clear();
  for (auto& [rank, member] : members_) {
    if (member.join.has_value()) std::exchange(member.join, std::nullopt)->done(joins);
    if (member.next_range) std::exchange(member.next_range, nullptr)(others);
  }
  for (ShardInfo& shard : shards_) {
    for (WaitingAnnounce& waiting : std::exchange(shard.announcing, {})) {
      waiting.done(absl::UnavailableError(others.message()));
    }
  }
  pins_.DropAll(others, now());
  for (Done<v1::LeaveReply>& leave : std::exchange(leaves_, {})) leave(others);
}

// ---- drained

void Coordinator::HandleDrain(const std::string& reason) {
  if (over() || !drain_.empty()) return;
  if (checkpoints_ == nullptr) return FailJob(LostPeer(reason));
  drain_ = reason;
  const auto end = [this] {
    FailJob(Drained(
        absl::StrCat(drain_, "; started again, the job goes on from ", checkpoints_->newest_folder())));
  };
  if (state_ != v1::RUNNING && state_ != v1::DRAINING) {
    // What is not in the newest checkpoint is lost already, or was never there.
    return checkpoints_->newest().has_value() ? end() : FailJob(LostPeer(reason));
  }
  // Nothing is acknowledged from here on that would not be saved.
  LogInfo("saving the job, since ", reason);
  FenceAll(absl::StrCat("the job is being saved and ends, since ", reason));
  checkpoints_->Request(/*of_now=*/true, [this, end](const absl::StatusOr<v1::CheckpointReply>& reply) {
    if (over()) return;
    if (reply.ok()) return end();
    FailJob(LostPeer(absl::StrCat(drain_, "; it could not be saved: ", reply.status().message())));
  });
}

}  // namespace weir
