#pragma once

#include <algorithm>
#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "common/protocol/interval_set.h"
#include "common/protocol/mode_traits.h"
#include "proto/job_config.pb.h"
#include "ps_server/coordinator/checkpoints.h"
#include "ps_server/coordinator/job_declaration.h"
#include "ps_server/coordinator/range_table.h"
#include "ps_server/coordinator/shard_fleet.h"
#include "ps_server/coordinator/step_committer.h"

namespace weir {

// How far a job is: in committed steps (sync), or in batches, of which workers complete ranges (bounded,
// async).
//
// Belongs to the coordinator's queue.
class JobProgress {
 public:
  // All outlive the object.
  JobProgress(const v1::JobConfig& config, uint32_t workers, const JobDeclaration& declared,
              const Checkpoints& checkpoints, const ShardFleet& shards);

  // sync: the open step.
  StepCommitter& steps() { return steps_; }
  const StepCommitter& steps() const { return steps_; }
  // bounded, async: absent until the shards are installed.
  std::optional<RangeTable>& ranges() { return ranges_; }
  // bounded, async: the shards are installed. `untouched`: they hold exactly what the newest checkpoint
  // holds.
  void BeginRanges(bool untouched);
  // Training may change what the shards hold.
  void Touch() { untouched_ = false; }
  // No work beyond this many steps or batches is done now; nullopt: there is no
  // such end.
  void SetWorkEnd(std::optional<uint64_t> end);

  // sync: committed steps; bounded, async: complete batches.
  uint64_t done() const;
  bool all_done() const;
  // The newest checkpoint holds this state.
  bool saved() const;
  // bounded, async: from shard 0's last report or the newest checkpoint, whichever says more.
  uint64_t batches() const;
  uint64_t examples() const;
  uint64_t steps_done() const;
  // Pushes that shard 0 has applied; in sync the pushes of all committed steps.
  uint64_t pushes() const;
  // The step that an evaluation of weights of this version names.
  uint64_t StepOf(uint64_t version) const;
  // "12 of 48 steps", for messages.
  std::string Text() const;

 private:
  // bounded, async: the steps that so many batches are.
  uint64_t StepsOf(uint64_t batches) const { return batches / std::max<uint32_t>(1, workers_); }

  const v1::JobConfig& config_;
  const ModeTraits& mode_;
  const uint32_t workers_;
  const JobDeclaration& declared_;
  const Checkpoints& checkpoints_;
  const ShardFleet& shards_;
  StepCommitter steps_;
  std::optional<RangeTable> ranges_;
  bool untouched_ = false;
};

}  // namespace weir
