#include "ps_server/coordinator/recovery.h"

#include <algorithm>
#include <optional>
#include <utility>

#include "absl/strings/str_cat.h"
#include "common/protocol/job_failure.h"
#include "common/telemetry/logging.h"

namespace weir {

// ---- installing

void Recovery::OnAttached(uint32_t index, const v1::Attached& attached) {
  if (job_.progress.steps().norms().needed() && !attached.measures_steps()) {
    return job_.context.fail(Misfit(absl::StrCat(job_.shards.name(index),
                                                 " speaks a version of the protocol before 1.10, which "
                                                 "measures no norms; train.clip \"mean\" and optimizer.type "
                                                 "\"lamb\" need them: upgrade this server")));
  }
  const ShardFleet::Place place = job_.shards.Attach(index, attached, job_.members.revision() + 1);
  if (place == ShardFleet::Place::kOther) return;
  if (place == ShardFleet::Place::kMoved) job_.members.Changed();
  MaybeInstall();
}

void Recovery::MaybeInstall() {
  if (job_.over() || job_.ending.ends_again() || job_.shards.empty() || job_.ending.drained()) return;
  if (job_.checkpoints.enabled() && job_.checkpoints.unsettled()) return;  // the newest checkpoint may change
  if (job_.source.searching()) {
    if (!job_.source.found() || job_.shards.AnyInstalling()) return;
    job_.source.Take();
    job_.progress.Touch();
    if (job_.checkpoints.enabled() && job_.mode.commits_steps)
      return RollBack("the newest checkpoint is damaged");
    // All shards must begin with the same weights. Later a shard of bounded or async is restored alone.
    if (job_.state == v1::STARTING && !job_.checkpoints.any()) job_.shards.GoBack();
  }
  if (job_.waits()) {
    if (job_.size().batches == 0 || !job_.shards.AllAttached()) return;
    // A new job also waits for the servers that stand by: if the job ended before they came, they could not
    // hear of its end. If the job continues from a checkpoint, they find its end in the last one.
    if (!job_.shards.AllServersAttached() && !job_.GoesOn()) return;
    if (!job_.EnoughWorkers()) return;
  }
  bool changed = false;
  for (uint32_t index = 0; index < job_.shards.size(); ++index) {
    const ShardFleet::Shard& shard = job_.shards[index];
    if (shard.installed || shard.installing || !shard.attached.has_value()) continue;
    if (!job_.members.AllKnow(shard.moved_revision)) continue;
    if (job_.KeepsState(index)) {
      job_.shards.Keep(index);
      changed = true;
      continue;
    }
    v1::ControlMessage message;
    v1::Install& install = *message.mutable_install();
    install.set_shard(index);
    install.set_num_shards(job_.shards.size());
    job_.declared.Describe(&install);
    install.set_coordinator_address(job_.shards.addresses()[0]);
    install.set_coordinator(job_.checkpoints.opened().coordinator_incarnation);
    job_.source.Describe(&install);
    job_.shards.Install(index, std::move(message));
  }
  if (changed && job_.shards.AllInstalled()) OnAllInstalled();
}

void Recovery::OnInstalled(uint32_t index, const v1::Installed& installed) {
  if (!job_.shards[index].installing) return;
  if (installed.damaged() && job_.source.exists()) {
    job_.shards.OnRefused(index);
    return job_.source.OnDamaged(job_.shards.name(index), installed.error());
  }
  if (!installed.error().empty()) {
    const std::string why = absl::StrCat(job_.shards.name(index), " cannot take part: ", installed.error());
    return job_.ending.FailUnlessReplaced(installed.permanent() ? Misfit(why) : LostPeer(why));
  }
  job_.shards.OnInstalled(index, installed);
  if (job_.source.searching()) return MaybeInstall();
  if (job_.shards.AllInstalled()) OnAllInstalled();
}

void Recovery::OnAllInstalled() {
  const bool restored = job_.checkpoints.any();
  for (uint32_t index = 0; index < job_.shards.size(); ++index) {
    const std::optional<absl::Duration> lost = job_.shards.OnBack(index);
    if (!lost.has_value()) continue;
    LogInfo(job_.shards.name(index), " is back after ",
            absl::FormatDuration(absl::Trunc(*lost, absl::Milliseconds(1))), ", ",
            job_.KeepsState(index) ? "with what it held"
            : restored             ? absl::StrCat("with ", job_.checkpoints.newest_folder())
                                   : "from the beginning");
  }
  if (job_.started()) {
    // The shard may have missed any number of changes. Workers must hear of its return, too, to tell the
    // shard which of their pushes were answered.
    admission_.Broadcast();
    return job_.members.Changed();
  }
  if (restored) LogInfo("the job goes on from ", job_.checkpoints.newest_folder());
  job_.shards.PingSoon();
  if (job_.mode.commits_steps && job_.checkpoints.enabled()) {
    // After the job went back, one more checkpoint may have become complete.
    job_.progress.steps().GoTo(job_.checkpoints.committed_steps());
    job_.checkpoints.Rewound(job_.progress.steps().committed());
    job_.evaluations.GoTo(job_.progress.steps().committed());
  }
  if (!job_.mode.works_on_parts && !job_.progress.ranges().has_value()) {
    // With a log the shards may hold more than the checkpoint.
    bool untouched = restored && job_.config().server().durability() != v1::ServerConfig::DURABILITY_LOG;
    for (uint32_t index = 0; index < job_.shards.size(); ++index) untouched &= !job_.KeepsState(index);
    job_.progress.BeginRanges(untouched);
    job_.evaluations.GoTo(job_.progress.done());
  }
  if (job_.declared.model()->uploaded() && !job_.source.exists()) {
    job_.upload.Begin();
  } else if (job_.checkpoints.enabled() && !job_.checkpoints.any() &&
             job_.config().server().durability() == v1::ServerConfig::DURABILITY_LOG) {
    // The log has neither the config nor the model, without which no coordinator could continue from it.
    job_.upload.BeginSaving();
  }
  job_.evaluations.SetWorkEnd(job_.progress.done());
  job_.progress.SetWorkEnd(job_.evaluations.work_end());
  const std::string stopped = job_.progress.all_done() ? "" : job_.evaluations.WhyItStopsHere();
  if (!stopped.empty() || (job_.progress.all_done() && !job_.evaluations.open())) {
    job_.OnTrainingStarts();
    job_.state = v1::RUNNING;
    job_.events.work_done(stopped);
    return admission_.MaybeAdmit();
  }
  if (!job_.members.workers().empty()) return admission_.Broadcast();
  admission_.MaybeAdmit();
}

// ---- lost shards

void Recovery::OnLinkEndedAfterEnd(uint32_t index, const absl::Status& status) {
  // If a server confirms the end and then ends, its connection may break before the confirmation arrives.
  // Then no process is there to be told again.
  const bool gone = absl::IsUnavailable(status) && !job_.shards[index].connected;
  if (status.ok() || gone) return job_.ending.OnServerKnows(index);
  job_.shards.Drop(index);
  // The next tick opens a new link.
  if (!job_.ending.OnServerBroke(index)) return;
  LogInfo("the link to ", job_.shards.name(index), " broke as the job ended: ", status.message());
}

void Recovery::OnLinkEnded(uint32_t index, const absl::Status& status) {
  if (job_.over()) return OnLinkEndedAfterEnd(index, status);
  if (job_.shards.WasElsewhere(index, status)) return;
  if (job_.state != v1::STARTING && job_.shards.stands_by(index))
    return job_.shards.DropStandby(index, status.message());
  if (absl::IsUnauthenticated(status) || absl::IsPermissionDenied(status)) {
    return job_.context.fail(
        Misfit(absl::StrCat(job_.shards.name(index), " refuses ps:0: ", status.message())));
  }
  if (absl::IsUnimplemented(status)) return job_.context.fail(Misfit(status.message()));
  // Only at the start: later a server of a different job may have got the address of a lost server.
  if (absl::IsNotFound(status) && job_.state == v1::STARTING) {
    return job_.context.fail(
        Misfit(absl::StrCat(job_.shards.name(index), " is another server: ", status.message())));
  }
  // A proxy (of a service mesh) may answer for a server that is not there yet. Tick() tries again.
  if (job_.state == v1::STARTING && !job_.shards[index].connected && absl::IsUnavailable(status)) {
    return job_.shards.Drop(index);
  }
  if (job_.checkpoints.enabled()) {
    if (!absl::IsFailedPrecondition(status)) return Lose(index, std::string(status.message()));
    return job_.context.replaced(
        absl::StrCat(job_.shards.name(index), " takes part under another ps:0: ", status.message()));
  }
  const std::string why =
      absl::StrCat(job_.shards.name(index),
                   job_.shards[index].connected ? " was lost: " : " cannot take part: ", status.message());
  job_.shards.Drop(index);
  job_.context.fail(LostPeer(why));
}

void Recovery::Lose(uint32_t index, const std::string& why) {
  // The shard may have heard of the end from the previous coordinator.
  if (job_.ending.ends_again()) return;
  // If all is saved and all members have left, the shard is no longer needed, and finds the end in the last
  // checkpoint. In bounded and async it is awaited, since it has yet to report its lost pushes.
  if (job_.mode.commits_steps && job_.state == v1::DRAINING && job_.ending.saved() &&
      !job_.ending.drained() && job_.members.workers().empty() && job_.members.readers().empty() &&
      !job_.AwaitsEvaluation()) {
    job_.shards.Drop(index);
    return job_.context.fail(absl::OkStatus());
  }
  job_.progress.steps().OnLost(index);
  job_.shards.Lose(index, why, /*started=*/job_.state != v1::STARTING);
  const bool goes_back = job_.state == v1::STARTING ? job_.upload.awaited() && !job_.shards.stands_by(index)
                                                    : job_.mode.commits_steps;
  const std::string what = absl::StrCat(job_.shards.name(index), " was lost: ", why);
  job_.checkpoints.Abandon(what, index, goes_back);
  job_.pins.DropAll(absl::UnavailableError(what));
  if (goes_back && !job_.over()) RollBack(what);
}

void Recovery::RollBack(const std::string& why) {
  const std::string back =
      absl::StrCat("the job goes back to step ", job_.checkpoints.committed_steps(), ", since ", why);
  if (job_.state != v1::RECOVERING || !job_.members.workers().empty()) {
    LogWarning(back);
    job_.complaints.Begin(job_.now());
  }
  if (job_.state != v1::STARTING) job_.state = v1::RECOVERING;
  job_.upload.Forget();
  // A shard that is installing uses the checkpoint to which the job goes back.
  job_.shards.GoBack();
  job_.progress.steps().GoTo(job_.checkpoints.committed_steps());
  job_.checkpoints.Rewound(job_.progress.steps().committed());
  job_.meter.OnMore();
  job_.losses.Restore(job_.checkpoints.any() ? job_.checkpoints.newest()->job().losses() : v1::LossHistory());
  if (job_.evaluations.GoBack(/*at_end=*/job_.declared.DoneBefore())) job_.declared.Lengthen();
  admission_.FenceAll(back);
  // Workers that left when all work seemed done have more to do.
  job_.ending.OnMore(absl::AbortedError(back));
  job_.members.ForgetLeft();
  MaybeInstall();
}

void Recovery::Tick() {
  const absl::Time time = job_.now();
  const auto& cluster = job_.config().cluster();
  job_.shards.Tick();
  // A moved shard is installed once all members have heard where it is, or have left. This matters at the end
  // of the job, too, because the end cannot be saved without the shard.
  const bool moved = std::any_of(job_.shards.begin(), job_.shards.end(), [](const ShardFleet::Shard& shard) {
    return shard.attached.has_value() && !shard.installed && shard.moved_revision > 0;
  });
  if (moved) MaybeInstall();
  for (uint32_t index = 0; index < job_.shards.servers().size() && !job_.over(); ++index) {
    const ShardFleet::Shard& shard = job_.shards[index];
    job_.shards.Reopen(index);
    if (shard.installing) {
      // Making version 0 of a large model, or loading the model, may take longer than a lease.
      if (time - shard.install_sent > absl::Seconds(cluster.start_seconds())) {
        job_.context.fail(LostPeer(absl::StrCat(job_.shards.name(index),
                                                " did not make its part of the model ready within ",
                                                "cluster.start_seconds = ", cluster.start_seconds())));
      }
      continue;
    }
    if (shard.connected && time - shard.last_heard > job_.lease()) {
      const std::string why =
          absl::StrCat("nothing was heard of it for ", absl::FormatDuration(time - shard.last_heard));
      if (job_.state != v1::STARTING && job_.shards.stands_by(index)) {
        job_.shards.DropStandby(index, why);
        continue;
      }
      if (!job_.checkpoints.enabled())
        return job_.context.fail(LostPeer(absl::StrCat(job_.shards.name(index), " was lost: ", why)));
      Lose(index, why);
    }
    // The server may have come back to a different ps:0.
    if (const std::string why = job_.shards.GivenUp(index); !why.empty()) {
      job_.ending.FailUnlessReplaced(LostPeer(why));
    }
  }
}

}  // namespace weir
