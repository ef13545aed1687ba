// The part of Coordinator for shards: attaches and installs them, and recovers lost ones.
#include <algorithm>
#include <utility>

#include "absl/strings/str_cat.h"
#include "common/protocol/handshake.h"
#include "common/protocol/job_failure.h"
#include "common/telemetry/logging.h"
#include "ps_server/coordinator/coordinator.h"

namespace weir {

// ---- installing

bool Coordinator::KeepsState(uint32_t index) const {
  const ShardFleet::Shard& shard = shards_[index];
  // In sync a shard that was away may have missed a step.
  if (mode_.commits_steps || !checkpoints_.enabled() || shard.attached->incarnation() == 0) return false;
  if (shard.attached->model_hash() != declared_.model()->Hash()) return false;
  if (const uint32_t of = shard.attached->num_shards(); of != 0 && of != shards_.size()) return false;
  if (shard.incarnation != 0) return shard.attached->incarnation() == shard.incarnation;
  // This coordinator has never seen the shard, but an earlier one on the same store has.
  return shard.attached->epoch() > 0 && shard.attached->epoch() <= checkpoints_.opened().used.epoch;
}

bool Coordinator::EnoughWorkers() const {
  if (size().batches == 0) return false;
  if (mode_.commits_steps && progress_.all_done()) return true;
  // Only step 0 of a new job waits for all its workers.
  return members_.Ranks().size() >= (GoesOn() ? 1 : declared_.needed_workers());
}

bool Coordinator::GoesOn() const {
  bool goes_on = state_ == v1::RECOVERING || checkpoints_.any();
  for (uint32_t shard = 0; shard < shards_.size(); ++shard) goes_on |= KeepsState(shard);
  return goes_on;
}

void Coordinator::MaybeInstall() {
  if (over() || ending_.ends_again() || shards_.empty() || ending_.drained()) return;
  if (checkpoints_.enabled() && checkpoints_.unsettled()) return;  // the newest checkpoint may change
  if (source_.searching()) {
    if (!source_.found() || shards_.AnyInstalling()) return;
    source_.Take();
    progress_.Touch();
    if (checkpoints_.enabled() && mode_.commits_steps) return RollBack("the newest checkpoint is damaged");
    // All shards must begin with the same weights. Later a shard of bounded or async is restored alone.
    if (state_ == v1::STARTING && !checkpoints_.any()) shards_.GoBack();
  }
  if (state_ == v1::STARTING || state_ == v1::RECOVERING) {
    if (size().batches == 0 || !shards_.AllAttached()) return;
    // A new job also waits for the servers that stand by: if the job ended before they came, they could not
    // hear of its end. If the job continues from a checkpoint, they find its end in the last one.
    if (!shards_.AllServersAttached() && !GoesOn()) return;
    if (!EnoughWorkers()) return;
  }
  bool changed = false;
  for (uint32_t index = 0; index < shards_.size(); ++index) {
    ShardFleet::Shard& shard = shards_[index];
    if (shard.installed || shard.installing || !shard.attached.has_value()) continue;
    if (!members_.AllKnow(shard.moved_revision)) continue;
    if (KeepsState(index)) {
      shards_.Keep(index);
      changed = true;
      continue;
    }
    v1::ControlMessage message;
    v1::Install& install = *message.mutable_install();
    install.set_shard(index);
    install.set_num_shards(shards_.size());
    declared_.Describe(&install);
    install.set_coordinator_address(shards_.addresses()[0]);
    install.set_coordinator(checkpoints_.opened().coordinator_incarnation);
    source_.Describe(&install);
    shards_.Install(index, std::move(message));
  }
  if (changed && shards_.AllInstalled()) OnAllInstalled();
}

void Coordinator::HandleInstalled(uint32_t index, const v1::Installed& installed) {
  if (!shards_[index].installing) return;
  if (installed.damaged() && source_.exists()) {
    shards_.OnRefused(index);
    return source_.OnDamaged(shards_.name(index), installed.error());
  }
  if (!installed.error().empty()) {
    const std::string why = absl::StrCat(shards_.name(index), " cannot take part: ", installed.error());
    return ending_.FailUnlessReplaced(installed.permanent() ? Misfit(why) : LostPeer(why));
  }
  shards_.OnInstalled(index, installed);
  if (source_.searching()) return MaybeInstall();
  if (shards_.AllInstalled()) OnAllInstalled();
}

void Coordinator::OnAllInstalled() {
  const bool restored = checkpoints_.any();
  for (uint32_t index = 0; index < shards_.size(); ++index) {
    const std::optional<absl::Duration> lost = shards_.OnBack(index);
    if (!lost.has_value()) continue;
    LogInfo(shards_.name(index), " is back after ",
            absl::FormatDuration(absl::Trunc(*lost, absl::Milliseconds(1))), ", ",
            KeepsState(index) ? "with what it held"
            : restored        ? absl::StrCat("with ", checkpoints_.newest_folder())
                              : "from the beginning");
  }
  if (state_ == v1::RUNNING || state_ == v1::DRAINING) {
    // The shard may have missed any number of changes. Workers must hear of its return, too, to tell the
    // shard which of their pushes were answered.
    BroadcastMembership();
    return members_.Changed();
  }
  if (restored) LogInfo("the job goes on from ", checkpoints_.newest_folder());
  shards_.PingSoon();
  if (mode_.commits_steps && checkpoints_.enabled()) {
    // After the job went back, one more checkpoint may have become complete.
    progress_.steps().GoTo(checkpoints_.committed_steps());
    checkpoints_.Rewound(progress_.steps().committed());
    evaluations_.GoTo(progress_.steps().committed());
  }
  if (!mode_.works_on_parts && !progress_.ranges().has_value()) {
    // With a log the shards may hold more than the checkpoint.
    bool untouched = restored && options_.config.server().durability() != v1::ServerConfig::DURABILITY_LOG;
    for (uint32_t index = 0; index < shards_.size(); ++index) untouched &= !KeepsState(index);
    progress_.BeginRanges(untouched);
    evaluations_.GoTo(progress_.done());
  }
  if (declared_.model()->uploaded() && !source_.exists()) {
    upload_.Begin();
  } else if (checkpoints_.enabled() && !checkpoints_.any() &&
             options_.config.server().durability() == v1::ServerConfig::DURABILITY_LOG) {
    // The log has neither the config nor the model, without which no coordinator could continue from it.
    upload_.BeginSaving();
  }
  evaluations_.SetWorkEnd(progress_.done());
  progress_.SetWorkEnd(evaluations_.work_end());
  const std::string stopped = progress_.all_done() ? "" : evaluations_.WhyItStopsHere();
  if (!stopped.empty() || (progress_.all_done() && !evaluations_.open())) {
    TrainingStarts();
    state_ = v1::RUNNING;
    stopped.empty() ? StartDraining() : StopEarly(stopped);
    return MaybeAdmit();
  }
  if (!members_.workers().empty()) return BroadcastMembership();
  MaybeAdmit();
}

// ---- lost shards

void Coordinator::HandleShardBroken(uint32_t index, const absl::Status& status) {
  if (shards_.WasElsewhere(index, status)) return;
  if (state_ != v1::STARTING && shards_.stands_by(index)) return shards_.DropStandby(index, status.message());
  if (absl::IsUnauthenticated(status) || absl::IsPermissionDenied(status)) {
    return EndJob(Misfit(absl::StrCat(shards_.name(index), " refuses ps:0: ", status.message())));
  }
  if (absl::IsUnimplemented(status)) return EndJob(Misfit(status.message()));
  // Only at the start: later a server of a different job may have got the address of a lost server.
  if (absl::IsNotFound(status) && state_ == v1::STARTING) {
    return EndJob(Misfit(absl::StrCat(shards_.name(index), " is another server: ", status.message())));
  }
  // A proxy (of a service mesh) may answer for a server that is not there yet. TickShards() tries again.
  if (state_ == v1::STARTING && !shards_[index].connected && absl::IsUnavailable(status)) {
    return shards_.Drop(index);
  }
  if (checkpoints_.enabled()) {
    if (!absl::IsFailedPrecondition(status)) return LoseShard(index, std::string(status.message()));
    return StepAside(absl::StrCat(shards_.name(index), " takes part under another ps:0: ", status.message()));
  }
  const std::string why =
      absl::StrCat(shards_.name(index),
                   shards_[index].connected ? " was lost: " : " cannot take part: ", status.message());
  shards_.Drop(index);
  EndJob(LostPeer(why));
}

void Coordinator::LoseShard(uint32_t index, const std::string& why) {
  // The shard may have heard of the end from the previous coordinator.
  if (ending_.ends_again()) return;
  // If all is saved and all members have left, the shard is no longer needed, and finds the end in the last
  // checkpoint. In bounded and async it is awaited, since it has yet to report its lost pushes.
  if (mode_.commits_steps && state_ == v1::DRAINING && ending_.saved() && !ending_.drained() &&
      members_.workers().empty() && members_.readers().empty() && !AwaitsEvaluation()) {
    shards_.Drop(index);
    return EndJob(absl::OkStatus());
  }
  progress_.steps().OnLost(index);
  shards_.Lose(index, why, /*started=*/state_ != v1::STARTING);
  const bool goes_back =
      state_ == v1::STARTING ? upload_.awaited() && !shards_.stands_by(index) : mode_.commits_steps;
  const std::string what = absl::StrCat(shards_.name(index), " was lost: ", why);
  checkpoints_.Abandon(what, index, goes_back);
  pins_.DropAll(absl::UnavailableError(what), now());
  if (goes_back && !over()) RollBack(what);
}

void Coordinator::RollBack(const std::string& why) {
  const std::string back =
      absl::StrCat("the job goes back to step ", checkpoints_.committed_steps(), ", since ", why);
  if (state_ != v1::RECOVERING || !members_.workers().empty()) {
    LogWarning(back);
    complaints_.Begin(now());
  }
  if (state_ != v1::STARTING) state_ = v1::RECOVERING;
  upload_.Forget();
  // A shard that is installing uses the checkpoint to which the job goes back.
  shards_.GoBack();
  progress_.steps().GoBackTo(checkpoints_.committed_steps());
  checkpoints_.Rewound(progress_.steps().committed());
  meter_.OnMore();
  losses_.Restore(checkpoints_.any() ? checkpoints_.newest()->job().losses() : v1::LossHistory());
  if (evaluations_.GoBack(/*at_end=*/declared_.DoneBefore())) declared_.Lengthen();
  FenceAll(back);
  // Workers that left when all work seemed done have more to do.
  ending_.OnMore(absl::AbortedError(back));
  members_.ForgetLeft();
  MaybeInstall();
}

void Coordinator::TickShards(absl::Time time) {
  const auto& cluster = options_.config.cluster();
  shards_.Tick();
  // A moved shard is installed once all members have heard where it is, or have left. This matters at the end
  // of the job, too, because the end cannot be saved without the shard.
  const bool moved = std::any_of(shards_.begin(), shards_.end(), [](const ShardFleet::Shard& shard) {
    return shard.attached.has_value() && !shard.installed && shard.moved_revision > 0;
  });
  if (moved) MaybeInstall();
  for (uint32_t index = 0; index < shards_.servers().size() && !over(); ++index) {
    ShardFleet::Shard& shard = shards_[index];
    shards_.Reopen(index);
    if (shard.installing) {
      // Making version 0 of a large model, or loading the model, may take longer than a lease.
      if (time - shard.install_sent > absl::Seconds(cluster.start_seconds())) {
        EndJob(LostPeer(absl::StrCat(shards_.name(index), " did not make its part of the model ready within ",
                                     "cluster.start_seconds = ", cluster.start_seconds())));
      }
      continue;
    }
    if (shard.connected && time - shard.last_heard > lease()) {
      const std::string why =
          absl::StrCat("nothing was heard of it for ", absl::FormatDuration(time - shard.last_heard));
      if (state_ != v1::STARTING && shards_.stands_by(index)) {
        shards_.DropStandby(index, why);
        continue;
      }
      if (!checkpoints_.enabled())
        return EndJob(LostPeer(absl::StrCat(shards_.name(index), " was lost: ", why)));
      LoseShard(index, why);
    }
    // The server may have come back to a different ps:0.
    if (const std::string why = shards_.GivenUp(index); !why.empty()) {
      ending_.FailUnlessReplaced(LostPeer(why));
    }
  }
}

}  // namespace weir
