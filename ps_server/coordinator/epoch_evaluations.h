#pragma once

#include <cstdint>
#include <optional>
#include <set>
#include <vector>

#include "absl/time/time.h"
#include "proto/coordinator.pb.h"

namespace weir {

// Keeps track of the evaluations at epochs' ends: which are due, which member was asked, and the results. The
// caller passes the time and talks to the members. Not thread-safe.
//
// The job's progress is counted in committed steps (sync) or complete batches (bounded, async). An epoch ends
// with the first step or batch that completes all of its examples.
//
// In sync, the evaluation is of exactly the weights of that step. No further step is committed before the
// weights are read (Holds()), nor the step after the next epoch's end while this evaluation is under way.
//
// In bounded and async, the evaluation is of weights that are read after the epoch's end, and no worker
// waits. Epochs that end while an evaluation is under way share the next one.
//
// An evaluation that no member could make is an entry without a result. The job's end is not evaluated in
// this way: its evaluation is the final one, whose result counts for the epoch that ends there (Final()).
//
// If the job waits for its evaluations (Options::waits), each of them is of exactly the weights of the
// epoch's end, in every mode and also at the job's end: no work beyond work_end() is done before the result
// is known.
class EpochEvaluations {
 public:
  // How many of the newest entries are kept.
  static constexpr size_t kMostEntries = 1000;

  struct Options {
    bool sync = true;
    // 0: no epoch is evaluated.
    uint32_t every_epochs = 1;
    uint64_t train_examples = 1, batch_size = 1;
    // sync: the parts of a step; otherwise 1.
    uint32_t batches_a_unit = 1;
    // The job's length in examples, and in steps (sync) or batches. An epoch whose last examples are left out
    // (data.drop_last), which `total_examples` counts and `total` does not, ends with the job.
    uint64_t total_examples = 0, total = 0;
    bool waits = false;
    // How long one evaluation may take.
    absl::Duration limit;
  };
  // Evaluates no epoch.
  EpochEvaluations() : EpochEvaluations(NoEpochs()) {}
  explicit EpochEvaluations(const Options& options) : options_(options), next_(options.every_epochs) {}

  // Takes over the entries of an earlier incarnation of the coordinator, by rising epoch.
  void Restore(const google::protobuf::RepeatedPtrField<v1::EpochEvaluation>& entries);
  // The job's state is exactly this progress, at its start or restored from a checkpoint: entries of later
  // epochs are dropped, and no member is asked any more.
  void GoTo(uint64_t progress);
  void Advance(uint64_t progress);
  // Whether Advance() would find the end of an epoch that is evaluated.
  bool Ends(uint64_t progress) const {
    return options_.every_epochs != 0 && Evaluated(next_) && EndOf(next_) <= progress;
  }
  // A member that evaluates is in the job. Before this call epochs end without an entry.
  void SetKnown();
  // An evaluation is due, and no other is under way.
  bool due() const { return due_.has_value() && !asked_.has_value(); }
  // An evaluation is due or under way.
  bool open() const { return due_.has_value() || asked_.has_value(); }
  bool waits() const { return options_.waits; }
  // If the job waits: the progress beyond which no work is done now. nullopt: no more epochs end.
  std::optional<uint64_t> work_end() const;
  // Whether the job is exactly at the end of the newest entry's epoch.
  bool AtNewestEnd() const { return !entries_.empty() && EndOf(entries_.back().epoch()) == progress_; }
  // False: this member was asked already, and could not evaluate.
  bool MayAsk(uint64_t incarnation) const { return failed_.count(incarnation) == 0; }
  void Ask(uint64_t incarnation, absl::Time now);
  // No member can make the evaluation that is due: its entry gets no result.
  void GiveUp();
  // The evaluation that this member is asked to make.
  std::optional<v1::EvaluationOrder> OrderFor(uint64_t incarnation) const;
  // While Holds(), or while the job waits: the member that the job waits for, the epoch, and since when.
  struct Holder {
    uint64_t incarnation = 0, epoch = 0;
    bool read = false;
    absl::Time since;
  };
  std::optional<Holder> holder() const {
    if (!asked_.has_value() || !(Holds() || options_.waits)) return std::nullopt;
    return Holder{asked_->incarnation, asked_->of.last, asked_->read, asked_->since};
  }
  // sync: no step may be committed now.
  bool Holds() const {
    if (options_.waits) return options_.sync && open();
    return options_.sync && asked_.has_value() && (!asked_->read || due_.has_value());
  }

  // A member has read these versions (by shard).
  void OnRead(uint64_t incarnation, const std::vector<uint64_t>& versions);
  // Returns the newest entry if the report is of what was asked. `step`: what the entry says.
  std::optional<v1::EpochEvaluation> OnReport(uint64_t incarnation, const v1::Evaluation& report,
                                              uint64_t step);
  // The member is out of the job.
  void OnGone(uint64_t incarnation);
  // True: the member that was asked has taken too long, and is not asked any more.
  bool OnTick(absl::Time now);
  // The job's end was evaluated. In bounded and async that is later than everything that is still due.
  void Final(const v1::Evaluation& evaluation, uint64_t step);

  // By rising epoch.
  const std::vector<v1::EpochEvaluation>& entries() const { return entries_; }

 private:
  static Options NoEpochs() {
    Options options;
    options.every_epochs = 0;
    return options;
  }

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
  // The epoch ends within the job, or with it.
  bool InJob(uint64_t epoch) const { return epoch <= options_.total_examples / options_.train_examples; }
  // The epoch's end has an evaluation of its own.
  bool Evaluated(uint64_t epoch) const {
    return InJob(epoch) && (options_.waits || EndOf(epoch) < options_.total);
  }
  // Evaluations are of exactly the weights of the epoch's end.
  bool exact() const { return options_.sync || options_.waits; }
  void Add(const Epochs& epochs, const v1::EpochEvaluation& entry);
  void Miss(const Epochs& epochs) { Add(epochs, {}); }
  // The evaluation under way is due again; or it is missed, if the job has ended or, in sync, has gone on.
  void Return();

  Options options_;
  bool known_ = false;
  uint64_t progress_ = 0;
  uint64_t next_;  // the next epoch to evaluate that has not ended
  uint64_t orders_ = 0;
  std::optional<Epochs> due_;
  std::optional<Asked> asked_;
  std::set<uint64_t> failed_;  // incarnations that could not evaluate what is asked or due
  bool ended_ = false;         // Final() was called
  std::vector<v1::EpochEvaluation> entries_;
};

}  // namespace weir
