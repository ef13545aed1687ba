// The steps of sync.
#include <optional>
#include <string>

#include "absl/strings/str_cat.h"
#include "common/base/bounded.h"
#include "common/protocol/job_failure.h"
#include "common/protocol/part_assignment.h"
#include "common/telemetry/logging.h"
#include "ps_server/coordinator/coordinator.h"

namespace weir {

bool Coordinator::MayLeaveOut(const std::string& parts, const std::string& why) {
  if (job_.config().consistency().on_nonfinite() == v1::ConsistencyConfig::ON_NONFINITE_STOP) {
    EndJob(Divergence(why));
    return false;
  }
  LogWarning("step ", job_.progress.steps().committed(), " is committed without ", parts, ": ", why);
  return true;
}

void Coordinator::MaybeCommit() {
  if (job_.state != v1::RUNNING || job_.ending.drained()) return;
  if (job_.evaluations.Holds()) return;  // an evaluator needs this step's weights
  // After the job's last step a worker must not begin another one, which would never be committed.
  if (job_.progress.end().has_value() && !job_.members.AllKnow(stop_revision_)) return;
  StepCommitter& steps = job_.progress.steps();
  if (!steps.norms().begun()) {
    const uint32_t parts = PartsOf(steps.committed(), job_.size().parts, job_.size().batches);
    const std::optional<StepCommitter::Commit> decided = steps.Ready(parts, job_.shards.size());
    if (!decided.has_value()) return;
    if (!decided->refused.empty() &&
        !MayLeaveOut(absl::StrCat("part(s) ", ShortList(decided->refused)), decided->reason))
      return;
    steps.norms().Begin(decided->step, job_.shards.size(), job_.declared.model()->tensors.size());
  }
  v1::ControlMessage message;
  if (const std::optional<v1::MeasureStep> round = steps.norms().NextRound(); round.has_value()) {
    *message.mutable_measure() = *round;
    return job_.shards.Broadcast(message);
  }
  const std::optional<StepNorms::Commit> commit = steps.norms().Ready(*job_.declared.model());
  if (!commit.has_value()) return;
  if (!commit->not_finite.empty() && !MayLeaveOut("its parts", commit->not_finite)) return;
  steps.Committed(commit->step);
  *message.mutable_commit() = commit->step;
  job_.shards.Broadcast(message);
  if (job_.progress.all_done() && !job_.evaluations.waits()) return StartDraining();
  MaybeEvaluate();
}

void Coordinator::OnMeasured(uint32_t shard, const v1::StepMeasured& measured) {
  StepNorms& norms = job_.progress.steps().norms();
  if (!norms.begun()) return;
  if (const absl::Status status = norms.OnMeasured(shard, measured); !status.ok()) {
    return EndJob(
        JobFailure(v1::FAILURE_INTERNAL, absl::StrCat(job_.shards.name(shard), ": ", status.message())));
  }
  MaybeCommit();
}

}  // namespace weir
