#pragma once

#include <cstdint>
#include <functional>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "absl/functional/function_ref.h"
#include "absl/time/time.h"
#include "proto/checkpoint.pb.h"
#include "proto/coordinator.pb.h"
#include "proto/job_config.pb.h"
#include "ps_server/coordinator/checkpoints.h"
#include "ps_server/coordinator/epoch_evaluations.h"
#include "ps_server/coordinator/job_size.h"
#include "ps_server/coordinator/member_table.h"

namespace weir {

// The evaluations of a job and what follows from them: who evaluates, which epoch is the best, how far the
// job may go before the next result is known, and whether it stops early. Takes the checkpoint that keeps the
// best epoch's weights.
//
// The coordinator tells the members. Belongs to the coordinator's queue.
class JobEvaluations {
 public:
  struct Options {
    // Both outlive the object.
    const v1::JobConfig* config = nullptr;
    Checkpoints* checkpoints = nullptr;
    // Whether the job is over, so that nothing is kept any more.
    std::function<bool()> over;
    // The best epoch's weights are saved, or could not be: the job may continue.
    std::function<void()> best_saved;
  };
  explicit JobEvaluations(Options options);

  // The job's length is known; all 0: not any more.
  void SetLength(const JobSize& size);
  // A checkpoint says what was evaluated before this coordinator began. The length must be known.
  void Restore(const v1::CoordinatorState& job);
  // The other direction, for a checkpoint of this step. The checkpoint that is taken for the best epoch says
  // itself that it is that.
  void Save(uint64_t step, v1::CoordinatorState* job) const;
  // The job goes back to a checkpoint. If that is `at_end` of the job, an evaluation of the end stays valid,
  // because its weights are restored. Returns whether the job was stopped early, which is undone.
  bool GoBack(bool at_end);

  // ---- epochs

  // Before the job's length is known, no epoch is evaluated.
  EpochEvaluations& epochs() { return epochs_; }
  const EpochEvaluations& epochs() const { return epochs_; }
  // The job goes on after an epoch's end only once the epoch's evaluation is known.
  bool waits() const { return waits_; }
  // If an evaluation is due, asks the first of these members (incarnations, by preference) that has not
  // failed at it. Returns whether a member was asked. `workers`: the job has workers, so that it must not
  // wait for a member that evaluates.
  bool AskOneOf(absl::FunctionRef<std::vector<uint64_t>()> members, bool workers, absl::Time now);
  // A member reports what it was asked for. `step`: what the new entry says. Saves the weights if the epoch
  // is the best and evaluation.keep_best asks for that.
  void OnReport(uint64_t incarnation, const v1::Evaluation& report, uint64_t step);
  // An evaluation is due or under way, or the weights of the last one are being saved.
  bool busy() const { return epochs_.open() || saving_best_.has_value(); }
  // The job waits while busy().
  bool awaited() const { return waits_ && busy(); }
  // The evaluator for which the job has waited a second or more, and what it has to do. Empty: there is none.
  std::string WaitingFor(const MemberTable& members, absl::Time now) const;

  // ---- how far the job goes

  // Returns whether work_end() has changed.
  bool SetWorkEnd(uint64_t progress);
  // HeartbeatReply.work_end
  std::optional<uint64_t> work_end() const { return work_end_; }
  // Why the job stops early at this point. Empty: it does not.
  std::string WhyItStopsHere() const;
  // The job is stopped early, now; or was, before this coordinator began.
  void StopEarly(std::string why) { stopped_early_ = std::move(why); }
  void StoppedBefore();
  // Why. Empty: the job was not stopped early.
  const std::string& stopped_early() const { return stopped_early_; }

  // ---- the best epoch

  // The epoch whose weights a checkpoint holds.
  const std::optional<v1::BestEpoch>& best() const { return best_; }

  // ---- the end

  // A report that no one asked for. Returns whether it is the final evaluation. `steps`: the job's length.
  bool OnUnasked(const v1::Evaluation& evaluation, uint64_t steps);
  // The newest result; once there is one, the final one.
  const v1::Evaluation& newest() const { return newest_; }
  bool final() const { return newest_.final(); }
  // A worker has left without making the final evaluation: then the workers' program evaluates nothing.
  void ExpectNoFinal() { no_final_ = true; }
  // The final evaluation has yet to come.
  bool AwaitsFinal() const { return !final() && !no_final_; }

 private:
  // The epoch's weights are to be kept.
  bool IsBest(const v1::EpochEvaluation& epoch) const;
  void SaveBest(const v1::EpochEvaluation& epoch);

  const Options options_;
  const v1::JobConfig& config_;
  const bool waits_;
  EpochEvaluations epochs_;
  std::optional<uint64_t> work_end_;
  std::string stopped_early_;
  // The epoch whose weights a checkpoint holds, and the epoch for which a checkpoint is being taken.
  std::optional<v1::BestEpoch> best_;
  std::optional<v1::EpochEvaluation> saving_best_;
  v1::Evaluation newest_;
  bool no_final_ = false;
};

}  // namespace weir
