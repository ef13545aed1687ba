#pragma once

#include <cstdint>
#include <optional>
#include <set>
#include <vector>

#include "absl/time/time.h"
#include "proto/coordinator.pb.h"

namespace weir {

// Which epochs' ends are to be evaluated, by whom, and what came out. Pure: told the time, asks nobody. Not
// thread-safe.
//
// The job's progress is counted in steps (sync) or batches that are complete (bounded, async). An epoch ends
// with the first step, or batch, with which all of its examples are done. Its evaluation is
//   sync           of exactly the weights of that step. No further step may be committed until they were read
//                  (Holds()), nor the one after the next epoch's end while this evaluation is under way.
//   bounded, async of weights read after that moment; nobody waits. Epochs that end while an evaluation is
//                  under way share the next one.
// One that nobody could make is an entry without a result. The end of the job is not among them: its
// evaluation is the final one, whose result counts for the epoch that ends there (Final()).
//
// Where the job waits for its evaluations (Options::waits) each is of exactly the weights of the epoch's end,
// in every mode, that of the job's end as well: nothing beyond work_end() is done until its result is known.
class EpochEvaluations {
 public:
  // Entries that are kept, the newest.
  static constexpr size_t kMostEntries = 1000;

  struct Options {
    bool sync = true;
    // 0: none.
    uint32_t every_epochs = 1;
    uint64_t train_examples = 1, batch_size = 1;
    // sync: parts of a step; else 1.
    uint32_t batches_a_unit = 1;
    // The job's length, and the same in steps (sync) or batches.
    uint64_t total_examples = 0, total = 0;
    bool waits = false;
    // What one evaluation may take.
    absl::Duration limit;
  };
  explicit EpochEvaluations(const Options& options) : options_(options), next_(options.every_epochs) {}

  // What an earlier incarnation had, by rising epoch.
  void Restore(const google::protobuf::RepeatedPtrField<v1::EpochEvaluation>& entries);
  // The job goes on from here: what was evaluated of later epochs is undone. Nobody is asked.
  void GoTo(uint64_t progress);
  void Advance(uint64_t progress);
  // Somebody is in the job who evaluates. Before, epochs end without an entry.
  void SetKnown();
  // An epoch has ended for which nobody is asked.
  bool due() const { return due_.has_value() && !asked_.has_value(); }
  // One is due or under way.
  bool open() const { return due_.has_value() || asked_.has_value(); }
  bool waits() const { return options_.waits; }
  // Where the job waits: the progress beyond which nothing is to be done now. nullopt: no epoch ends any
  // more.
  std::optional<uint64_t> work_end() const;
  // Whether it is an epoch's end where the job is now, the newest of the entries.
  bool AtNewestEnd() const { return !entries_.empty() && EndOf(entries_.back().epoch()) == progress_; }
  // Whoever was asked already, and could not.
  bool MayAsk(uint64_t incarnation) const { return failed_.count(incarnation) == 0; }
  void Ask(uint64_t incarnation, absl::Time now);
  // All who could do it were asked.
  void GiveUp();
  // What this member is asked to do.
  std::optional<v1::EvaluationOrder> OrderFor(uint64_t incarnation) const;
  // sync: no step may be committed now.
  // The member of this incarnation is waited for then, since that time.
  struct Holder {
    uint64_t incarnation = 0, epoch = 0;
    bool read = false;
    absl::Time since;
  };
  std::optional<Holder> holder() const {
    if (!asked_.has_value() || !(Holds() || options_.waits)) return std::nullopt;
    return Holder{asked_->incarnation, asked_->of.last, asked_->read, asked_->since};
  }
  bool Holds() const {
    if (options_.waits) return options_.sync && open();
    return options_.sync && asked_.has_value() && (!asked_->read || due_.has_value());
  }

  // A member has read these versions (by shard).
  void OnRead(uint64_t incarnation, const std::vector<uint64_t>& versions);
  // The newest entry, if the report was of what was asked. `step`: as entries have it.
  std::optional<v1::EpochEvaluation> OnReport(uint64_t incarnation, const v1::Evaluation& report,
                                              uint64_t step);
  // The member is out.
  void OnGone(uint64_t incarnation);
  // True: whoever is asked has taken too long, and is asked no more.
  bool OnTick(absl::Time now);
  // The job's end was evaluated, which in bounded and async is later than all that is still due.
  void Final(const v1::Evaluation& evaluation, uint64_t step);

  // By rising epoch.
  const std::vector<v1::EpochEvaluation>& entries() const { return entries_; }

 private:
  // Epochs whose ends share an evaluation, and the progress at which it came due.
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
  // It ends within the job, or with it.
  bool InJob(uint64_t epoch) const { return epoch <= options_.total_examples / options_.train_examples; }
  // Its end is evaluated by itself.
  bool Evaluated(uint64_t epoch) const {
    return InJob(epoch) && (options_.waits || EndOf(epoch) < options_.total);
  }
  // What is evaluated is of the very weights of the epoch's end.
  bool exact() const { return options_.sync || options_.waits; }
  void Add(const Epochs& epochs, const v1::EpochEvaluation& entry);
  void Miss(const Epochs& epochs) { Add(epochs, {}); }
  // What was asked is due again, or, in sync where the job has gone on, missed.
  void Return();

  const Options options_;
  bool known_ = false;
  uint64_t progress_ = 0;
  uint64_t next_;  // epoch that has not ended
  uint64_t orders_ = 0;
  std::optional<Epochs> due_;
  std::optional<Asked> asked_;
  std::set<uint64_t> failed_;  // incarnations, of what is asked or due
  bool ended_ = false;         // Final() was called
  std::vector<v1::EpochEvaluation> entries_;
};

}  // namespace weir
