#pragma once

#include <algorithm>
#include <cstdint>
#include <deque>
#include <limits>
#include <map>
#include <optional>
#include <set>
#include <string>
#include <utility>
#include <vector>

#include "common/protocol/interval_set.h"
#include "common/protocol/mode_traits.h"
#include "proto/coordinator.pb.h"
#include "proto/shard_control.pb.h"
#include "ps_server/coordinator/checkpoints/checkpoints.h"
#include "ps_server/coordinator/job/job.h"
#include "ps_server/coordinator/members/job_declaration.h"
#include "ps_server/coordinator/progress/step_norms.h"
#include "ps_server/coordinator/shards/shard_fleet.h"

namespace weir {

// The steps of sync: what each shard has staged for the open step, and when that step commits. A part belongs
// to a step once every shard has the part and no shard refused it.
//
// Belongs to the coordinator's queue.
class StepCommitter {
 public:
  // A step may commit without its slowest parts, as many as there are backup workers. `norms`: what a commit
  // needs.
  explicit StepCommitter(uint32_t backup_workers, StepNorms norms = StepNorms())
      : backup_workers_(backup_workers), norms_(std::move(norms)) {}

  // How many steps are committed, which is also the number of the open step.
  uint64_t committed() const { return committed_; }

  // Takes a shard's newest report, which replaces the previous one.
  void OnStaged(uint32_t shard, const v1::StepStaged& staged) { staged_[shard] = staged; }
  // The shard was lost, together with the parts that it had staged.
  void OnLost(uint32_t shard) {
    staged_.erase(shard);
    norms_.Forget();
  }

  // The commit of the open step.
  struct Commit {
    v1::CommitStep step;
    // The parts that some shard refused, and why. They are not in `step`.
    std::set<uint32_t> refused;
    std::string reason;
  };
  // nullopt: too few of the step's `parts` are on all `shards`.
  std::optional<Commit> Ready(uint32_t parts, size_t shards) const;
  // The norms of the open step, from which on its parts stay decided.
  StepNorms& norms() { return norms_; }
  // Opens the next step.
  void Committed(const v1::CommitStep& step);

  // Shard 0 has applied this many steps.
  void OnApplied(uint64_t steps) { pushes_.erase(pushes_.begin(), pushes_.lower_bound(steps)); }
  // The number of pushes in committed steps, from this step on.
  uint64_t PushesSince(uint64_t step) const;

  // All shards begin with a checkpoint of this many steps, without the parts that they had staged.
  void GoTo(uint64_t committed);

 private:
  const uint32_t backup_workers_;
  StepNorms norms_;
  uint64_t committed_ = 0;
  std::map<uint32_t, v1::StepStaged> staged_;  // by shard
  // How many parts each step has, by step, for the steps that shard 0 may not have applied yet.
  std::map<uint64_t, uint32_t> pushes_;
};

// The batches that all holders hold. The intervals of one holder are disjoint.
Intervals HeldByAll(const std::vector<Intervals>& holders);

// bounded, async: which worker gets which batches of the job. Batches are handed out in order, in ranges. If
// a worker leaves a range undone, the next worker that asks gets it. Not thread-safe.
class RangeTable {
 public:
  // Makes about 16 ranges per worker, of 1 to 64 batches, so that the workers finish at about the same time.
  // `done`: the batches that are done already, as rising, disjoint intervals.
  RangeTable(uint64_t total_batches, uint32_t workers, const Intervals& done = {});

  // Batches from `batch` on are not handed out. At first there is no such limit.
  void SetWorkEnd(uint64_t batch) { work_end_ = batch; }
  // The job ends with the batches that are complete, and with the ranges that workers hold, as far as these
  // are completed. False, and no change: these are all.
  bool EndHere();

  // The range that this worker holds or, if it holds none, the next one. nullopt: all batches before the
  // work's end are handed out or done.
  std::optional<v1::Range> Take(uint32_t worker);
  // The worker has completed this range. Ignored if the worker does not hold it.
  void Complete(uint64_t id, uint32_t worker);
  // The worker is gone: its range may be taken again, or after EndHere() is left undone.
  void Release(uint32_t worker);

  bool Available() const {
    return !returned_.empty() || (!fresh_.empty() && fresh_.front().first < work_end_);
  }
  bool done() const { return completed_batches_ == total_batches_; }
  uint64_t completed_batches() const { return completed_batches_; }

 private:
  uint64_t total_batches_;
  const uint64_t range_batches_;
  uint64_t work_end_ = std::numeric_limits<uint64_t>::max();
  uint64_t completed_batches_ = 0;
  // Intervals [begin, end) that were never handed out, rising.
  std::deque<std::pair<uint64_t, uint64_t>> fresh_;
  // By the first batch, which is a range's id.
  std::map<uint64_t, v1::Range> returned_;
  std::map<uint32_t, v1::Range> held_;  // by worker
  bool ended_ = false;
};

// How far a job is: in committed steps (sync), or in batches, of which workers complete ranges (bounded,
// async).
//
// Belongs to the coordinator's queue.
class JobProgress {
 public:
  // All outlive the object.
  JobProgress(const JobContext& job, const JobDeclaration& declared, const Checkpoints& checkpoints,
              const ShardFleet& shards);

  // sync: the open step.
  StepCommitter& steps() { return steps_; }
  const StepCommitter& steps() const { return steps_; }
  // bounded, async: absent until the shards are installed.
  std::optional<RangeTable>& ranges() { return ranges_; }
  // bounded, async: the shards are installed. `untouched`: they hold exactly the newest checkpoint's state.
  void BeginRanges(bool untouched);
  // From now on training may change what the shards hold.
  void Touch() { untouched_ = false; }
  // No work beyond this many steps or batches is done now. nullopt: there is no such limit.
  void SetWorkEnd(std::optional<uint64_t> end);

  // The job ends after the work that has begun: in sync the open step, otherwise the ranges that workers
  // hold. False, and no change: there is no other work.
  bool EndSoon();
  // sync, after EndSoon(): how many steps the job has. It stays, whatever the job goes back to.
  std::optional<uint64_t> end() const { return end_; }

  // sync: the committed steps; bounded, async: the complete batches.
  uint64_t done() const;
  bool all_done() const;
  // Whether the newest checkpoint holds the current state.
  bool saved() const;
  // bounded, async: the larger of the counts in shard 0's last report and in the newest checkpoint.
  uint64_t batches() const;
  uint64_t examples() const;
  uint64_t steps_done() const;
  // The pushes that shard 0 has applied; in sync the pushes of all committed steps.
  uint64_t pushes() const;
  // The step that the evaluation of this version of the weights names.
  uint64_t StepOf(uint64_t version) const;
  // "12 of 48 steps", for messages.
  std::string Text() const;

 private:
  // bounded, async: how many steps this many batches are.
  uint64_t StepsOf(uint64_t batches) const { return batches / std::max<uint32_t>(1, job_.workers); }

  const JobContext& job_;
  const ModeTraits& mode_;
  const JobDeclaration& declared_;
  const Checkpoints& checkpoints_;
  const ShardFleet& shards_;
  StepCommitter steps_;
  std::optional<uint64_t> end_;
  std::optional<RangeTable> ranges_;
  bool untouched_ = false;
};

}  // namespace weir
