#pragma once

#include <cstdint>
#include <map>
#include <optional>
#include <set>
#include <string>
#include <vector>

#include "proto/shard_control.pb.h"

namespace weir {

// The steps of sync: what each shard has staged for the open step, and when that step commits. A part belongs
// to a step once every shard has it and no shard refused it.
//
// Belongs to the coordinator's queue.
class StepCommitter {
 public:
  // A step may commit without its slowest parts, as many as there are backup workers.
  explicit StepCommitter(uint32_t backup_workers) : backup_workers_(backup_workers) {}

  // How many steps are committed; the open step has this number.
  uint64_t committed() const { return committed_; }

  // The newest report of one shard replaces the one before.
  void OnStaged(uint32_t shard, const v1::StepStaged& staged) { staged_[shard] = staged; }
  // The shard was lost, with what it had staged.
  void OnLost(uint32_t shard) { staged_.erase(shard); }

  // The commit of the open step.
  struct Commit {
    v1::CommitStep step;
    // Parts that some shard refused, and why. They are not in `step`.
    std::set<uint32_t> refused;
    std::string reason;
  };
  // nullopt: too few of the step's `parts` are on all `shards`.
  std::optional<Commit> Ready(uint32_t parts, size_t shards) const;
  // Opens the next step.
  void Committed(const Commit& commit);

  // Shard 0 has applied this many steps.
  void OnApplied(uint64_t steps) { pushes_.erase(pushes_.begin(), pushes_.lower_bound(steps)); }
  // The number of pushes in committed steps, from this step on.
  uint64_t PushesSince(uint64_t step) const;

  // A checkpoint says that this many steps are committed.
  void GoTo(uint64_t committed) { committed_ = committed; }
  // All shards go back to a checkpoint of this many steps: what they had staged is gone.
  void GoBackTo(uint64_t committed);

 private:
  const uint32_t backup_workers_;
  uint64_t committed_ = 0;
  std::map<uint32_t, v1::StepStaged> staged_;  // by shard
  // By step: how many parts the steps have that shard 0 may not have applied yet.
  std::map<uint64_t, uint32_t> pushes_;
};

}  // namespace weir
