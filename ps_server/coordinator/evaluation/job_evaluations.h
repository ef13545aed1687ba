#pragma once

#include <cstdint>
#include <functional>
#include <optional>
#include <set>
#include <string>
#include <utility>
#include <vector>

#include "absl/functional/function_ref.h"
#include "absl/time/time.h"
#include "proto/checkpoint.pb.h"
#include "proto/coordinator.pb.h"
#include "proto/job_config.pb.h"
#include "ps_server/coordinator/checkpoints/checkpoints.h"
#include "ps_server/coordinator/job/job.h"
#include "ps_server/coordinator/members/member_table.h"

namespace weir {

// The evaluations of a job: which are due, which member was asked, and the results. Decides from the results
// which epoch is the best, how far the job may go before the next result is known, and whether it stops
// early. Takes the checkpoint that keeps the best epoch's weights.
//
// The job's progress is counted in committed steps (sync) or complete batches (bounded, async). An epoch ends
// with the first step or batch that completes all of its examples.
//
// In sync, the evaluation is of exactly the weights of that step. No further step is committed before these
// weights are read, and none after the next epoch's end while the evaluation is under way (Holds()).
//
// In bounded and async, the evaluation is of weights that are read after the epoch's end, and no worker
// waits. Epochs that end while an evaluation is under way share the next one.
//
// If no member could make an evaluation, its entry has no result. The job's end is not evaluated in this way:
// the final evaluation counts for the epoch that ends there.
//
// If the job waits for its evaluations (waits()), each is of exactly the weights of the epoch's end, in every
// mode and also at the job's end. No work beyond work_end() is done before the result is known.
//
// The coordinator tells the members. Belongs to the coordinator's queue.
class JobEvaluations {
 public:
  // Only this many of the newest entries are kept.
  static constexpr size_t kMostEntries = 1000;

  // `checkpoints` outlives the object. `best_saved` is called when the best epoch's weights are saved, or
  // could not be saved, so that the job may continue.
  JobEvaluations(const JobContext& job, Checkpoints& checkpoints, std::function<void()> best_saved);

  // Sets the job's length. All 0: it is no longer known. While it is unknown, no epoch is evaluated.
  void SetLength(const JobSize& size);
  // Takes from a checkpoint what was evaluated before this coordinator began. The length must be known.
  void Restore(const v1::CoordinatorState& job);
  // Fills in a checkpoint of this step. If this checkpoint is taken for the best epoch, it says so itself.
  void Save(uint64_t step, v1::CoordinatorState* job) const;
  // The job goes back to a checkpoint. If the checkpoint is of the job's end (`at_end`), an evaluation of the
  // end stays valid, because its weights are restored. Returns whether the job may have been shortened, which
  // is undone until it stops again.
  bool GoBack(bool at_end);

  // ---- epochs

  // The job's state is exactly at this progress, at its start or restored from a checkpoint. Drops the
  // entries of later epochs, and forgets which member was asked.
  void GoTo(uint64_t progress);
  void Advance(uint64_t progress);
  // Whether Advance() would find the end of an epoch that is evaluated.
  bool Ends(uint64_t progress) const { return every_ != 0 && Evaluated(next_) && EndOf(next_) <= progress; }
  // A member that evaluates is in the job. Before this call no epoch gets an entry.
  void SetKnown();
  // If an evaluation is due, asks the first of these members (incarnations, by preference) that has not
  // failed at it. Returns whether a member was asked. `workers`: the job has workers, and so must not wait
  // until a member that evaluates joins.
  bool AskOneOf(absl::FunctionRef<std::vector<uint64_t>()> members, bool workers, absl::Time now);
  // The evaluation that this member is asked to make.
  std::optional<v1::EvaluationOrder> OrderFor(uint64_t incarnation) const;
  // A member has read these versions (by shard).
  void OnRead(uint64_t incarnation, const std::vector<uint64_t>& versions);
  // A member reports the evaluation that it was asked for. `step`: of the new entry. If the epoch is the best
  // and evaluation.keep_best is set, saves the weights.
  void OnReport(uint64_t incarnation, const v1::Evaluation& report, uint64_t step);
  // The member is out of the job.
  void OnGone(uint64_t incarnation);
  // If the member that was asked has taken too long, gives its evaluation up and returns true.
  bool OnTick(absl::Time now);
  // By rising epoch.
  const std::vector<v1::EpochEvaluation>& entries() const { return entries_; }

  // ---- how far the job goes

  // Whether the job continues after an epoch's end only once the epoch's evaluation is known.
  bool waits() const { return waits_; }
  // Whether an evaluation is due and none is under way.
  bool due() const { return due_.has_value() && !asked_.has_value(); }
  // Whether an evaluation is due or under way.
  bool open() const { return due_.has_value() || asked_.has_value(); }
  // Whether an evaluation is due or under way, or the best epoch's weights are being saved.
  bool busy() const { return open() || saving_best_.has_value(); }
  // Whether the job waits now, which it does while busy() if waits().
  bool awaited() const { return waits_ && busy(); }
  // sync: whether no step may be committed now.
  bool Holds() const {
    if (waits_) return sync_ && open();
    return sync_ && asked_.has_value() && (!asked_->read || due_.has_value());
  }
  // Names for messages the evaluator for which the job has waited a second or more, and says what it has to
  // do. Empty: the job waits for none.
  std::string WaitingFor(const MemberTable& members, absl::Time now) const;
  // Returns whether work_end() has changed.
  bool SetWorkEnd(uint64_t progress);
  // If waits(): no work beyond this progress is done now (HeartbeatReply.work_end). nullopt: no limit.
  std::optional<uint64_t> work_end() const { return work_end_; }
  // Why the job stops early at this point. Empty: it does not.
  std::string WhyItStopsHere() const;
  // StopEarly(): the job is stopped early now. StopSoon(): it was asked to stop, and does so after the work
  // that has begun, also if it goes back to a checkpoint meanwhile. StoppedBefore(): it was stopped before
  // this coordinator began, and `job` is its end.
  void StopEarly(std::string why) { stopped_early_ = std::move(why); }
  void StopSoon(std::string why) {
    stopped_early_ = std::move(why);
    asked_to_stop_ = true;
  }
  void StoppedBefore(const v1::CoordinatorState& job);
  // Why the job is, or soon will be, stopped early. Empty: it is not.
  const std::string& stopped_early() const { return stopped_early_; }
  // The epoch whose weights a checkpoint holds.
  const std::optional<v1::BestEpoch>& best() const { return best_; }

  // ---- the end

  // A report that nothing asked for. Returns whether it is the final evaluation. `steps`: the job's length.
  bool OnUnasked(const v1::Evaluation& evaluation, uint64_t steps);
  // The newest result; once there is a final result, that.
  const v1::Evaluation& newest() const { return newest_; }
  bool final() const { return newest_.final(); }
  // A worker has left without making the final evaluation. So the workers' program evaluates nothing.
  void ExpectNoFinal() { no_final_ = true; }
  // Whether the final evaluation has yet to come.
  bool AwaitsFinal() const { return !final() && !no_final_; }

 private:
  // Epochs whose ends share an evaluation, and the progress at which the evaluation became due.
  struct Epochs {
    uint64_t first = 0, last = 0, progress = 0;
  };
  struct Asked {
    Epochs of;
    uint64_t order = 0, incarnation = 0;
    bool read = false;
    absl::Time since;
  };
  uint64_t EndOf(uint64_t epoch) const;
  // Whether the epoch ends within the job, or with it. If data.drop_last leaves out the last examples of the
  // last epoch, the epoch ends with the job.
  bool InJob(uint64_t epoch) const {
    return epoch <= (size_.examples + size_.dropped) / size_.train_examples;
  }
  // Whether the epoch's end has an evaluation of its own.
  bool Evaluated(uint64_t epoch) const { return InJob(epoch) && (waits_ || EndOf(epoch) < total()); }
  // Whether evaluations are of exactly the weights of the epoch's end.
  bool exact() const { return sync_ || waits_; }
  // The job's length, counted as its progress is, and how many batches are one unit of progress.
  uint64_t total() const { return sync_ ? size_.steps : size_.batches; }
  uint32_t unit() const { return sync_ ? size_.parts : 1; }
  void Ask(uint64_t incarnation, absl::Time now);
  // No member can make the evaluation that is due, so its entry gets no result.
  void GiveUp();
  // The member that was asked cannot make the evaluation, which is due again. If the job has ended or, in
  // sync, has continued, the evaluation is missed.
  void Return();
  void Add(const Epochs& epochs, const v1::EpochEvaluation& entry);
  void Miss(const Epochs& epochs) { Add(epochs, {}); }
  // The job's end was evaluated. The result also counts for each evaluation that is still due.
  void Final(const v1::Evaluation& evaluation, uint64_t step);
  // Whether the epoch's weights are to be kept.
  bool IsBest(const v1::EpochEvaluation& epoch) const;
  void SaveBest(const v1::EpochEvaluation& epoch);

  const JobContext& job_;
  const v1::JobConfig& config_;
  Checkpoints& checkpoints_;
  const std::function<void()> best_saved_;
  const bool sync_, waits_;

  JobSize size_;
  // evaluation.every_epochs; 0: no epoch is evaluated.
  uint32_t every_ = 0;
  bool known_ = false;
  uint64_t progress_ = 0;
  uint64_t next_ = 0;  // the next epoch to evaluate that has not ended
  uint64_t orders_ = 0;
  std::optional<Epochs> due_;
  std::optional<Asked> asked_;
  std::set<uint64_t> failed_;  // incarnations that could not evaluate what is asked or due
  bool ended_ = false;         // Final() was called
  std::vector<v1::EpochEvaluation> entries_;

  std::optional<uint64_t> work_end_;
  std::string stopped_early_;
  bool asked_to_stop_ = false;
  // The epoch whose weights a checkpoint holds, and the epoch for which a checkpoint is being taken.
  std::optional<v1::BestEpoch> best_;
  std::optional<v1::EpochEvaluation> saving_best_;
  v1::Evaluation newest_;
  bool no_final_ = false;
};

}  // namespace weir
