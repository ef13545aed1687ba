// The part of Coordinator for what outlives it: the content of checkpoints, and numbers that are used only
// once.
#include <algorithm>
#include <utility>

#include "absl/strings/str_cat.h"
#include "common/protocol/job_failure.h"
#include "common/system/file_system.h"
#include "common/telemetry/logging.h"
#include "ps_server/coordinator/coordinator.h"

namespace weir {
namespace {

// When there was no room for numbers that are needed.
constexpr absl::Duration kAskAgain = absl::Seconds(1);

// What a checkpoint says of the job beside the shards' state and the job's progress.
std::string ResultsIn(const v1::CoordinatorState& job) {
  v1::CoordinatorState results;
  results.set_done(job.done());
  results.set_total_batches(job.total_batches());
  *results.mutable_evaluations() = job.evaluations();
  if (job.has_best()) *results.mutable_best() = job.best();
  return results.SerializeAsString();
}

}  // namespace

Checkpoints::Options Coordinator::CheckpointsOptions(std::unique_ptr<JobStore> store) {
  Checkpoints::Options options;
  options.config = options_.config.checkpoint();
  options.store = std::move(store);
  options.clock = options_.clock;
  options.post = [this](std::function<void()> function) { queue_.Post(std::move(function)); };
  options.snapshot = [this] { return TakeSnapshot(); };
  options.broadcast = [this](const v1::ControlMessage& message) { shards_.Broadcast(message); };
  options.replaced = [this](const std::string& why) { StepAside(why); };
  options.changed = [this] { MaybeInstall(); };
  return options;
}

absl::StatusOr<Checkpoints::Snapshot> Coordinator::TakeSnapshot() const {
  if (state_ != v1::RUNNING && state_ != v1::DRAINING && !upload_.saving()) {
    return absl::UnavailableError(
        absl::StrCat("the job is ", v1::JobState_Name(state_), "; there is nothing to save"));
  }
  for (uint32_t shard = 0; shard < shards_.size(); ++shard) {
    if (!shards_[shard].installed)
      return absl::UnavailableError(absl::StrCat(shards_.name(shard), " is away"));
  }
  Checkpoints::Snapshot snapshot;
  const auto& newest = checkpoints_.newest();
  snapshot.progress = steps_done();
  // What shard 0 has applied is known from its last report; complete batches are known at once.
  const uint64_t complete = progress() / std::max<uint32_t>(1, options_.workers);
  if (!mode_.commits_steps) {
    snapshot.step = std::max({steps_done(), complete, checkpoints_.next_step()});
  } else if (newest.has_value()) {
    // Above the newest one's, which may be of this very step.
    snapshot.step = std::max(steps_.committed(), newest->step() + 1);
  } else {
    snapshot.step = steps_.committed();
  }
  snapshot.num_shards = shards_.size();
  declared_.Describe(&snapshot);
  v1::CoordinatorState& job = snapshot.job;
  *job.mutable_identity() = job_;
  job.set_committed_steps(steps_.committed());
  // A coordinator that starts from the checkpoint would not have the last epoch evaluated any more.
  const bool evaluated = !evaluations_.waits() || !evaluations_.epochs().open();
  job.set_done(state_ == v1::DRAINING || (AllDone() && evaluated));
  job.set_examples(examples_done());
  job.set_epoch(numbers_.epoch());
  job.set_last_incarnation(numbers_.incarnation());
  const v1::Membership membership = MembershipNow();
  *job.mutable_members() = membership.members();
  for (uint32_t rank : ending_.gave_up()) job.add_gave_up(rank);
  evaluations_.Save(snapshot.step, &job);
  *job.mutable_losses() = losses_.history();
  // A checkpoint of the same state may have been taken before an epoch's evaluation was known, or before the
  // last range was reported. A coordinator that starts from it would know nothing of the best epoch, or would
  // wait for workers, which have been told of the end and are gone.
  const bool same_state =
      newest.has_value() &&
      (mode_.commits_steps ? checkpoints_.committed_steps() == steps_.committed() : untouched_);
  snapshot.saved = same_state && ResultsIn(newest->job()) == ResultsIn(job);
  return snapshot;
}

bool Coordinator::HasNumbers(uint64_t count) {
  if (numbers_.Need(count)) return true;
  AskForNumbers(count);
  return false;
}

void Coordinator::AskForNumbers(uint64_t count) {
  numbers_.Ask(count, [this, count](const absl::Status& status, bool needed) {
    if (over()) return;
    if (absl::IsAborted(status)) return StepAside(std::string(status.message()));
    if (!status.ok()) {
      const std::string why =
          absl::StrCat("cannot reserve membership epochs, which must never be used again: ",
                       std::string(status.message()));
      if (needed && MayPass(status)) return AskAgain(count, why);
      if (needed) return EndJob(LostPeer(why));
      numbers_.AskLater(now() + kComplaintInterval);
      return LogWarning(why);
    }
    numbers_trouble_.reset();
    if (std::exchange(broadcast_due_, false)) BroadcastMembership();
    if (needed) MaybeAdmit();
  });
}

void Coordinator::AskAgain(uint64_t count, const std::string& why) {
  const double limit = options_.config.checkpoint().save_wait_seconds();
  if (!numbers_trouble_.has_value()) {
    numbers_trouble_ = NumbersTrouble{now(), now(), count};
    LogWarning(why, "; it is tried again for ", limit,
               " s (checkpoint.save_wait_seconds), make room meanwhile");
  }
  if (now() - numbers_trouble_->since >= absl::Seconds(limit)) {
    return EndJob(StorageFailure(
        absl::StrCat(why, "; there was no room within checkpoint.save_wait_seconds = ", limit)));
  }
  numbers_trouble_->next = now() + kAskAgain;
  numbers_trouble_->count = count;
  numbers_.Need(count);  // it goes on waiting
}

}  // namespace weir
