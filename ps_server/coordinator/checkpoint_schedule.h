#pragma once

#include <cstdint>

#include "absl/time/time.h"
#include "proto/job_config.pb.h"

namespace weir {

// Decides when the next checkpoint is due: after so many steps, after so much time, or by itself. The caller
// passes the time. Not thread-safe.
//
// By itself: the cost of saving equals the work that a lost server costs at an interval of sqrt(2 * cost *
// mean time between losses) (Young 1974). The cost is the whole time that the last checkpoint took, although
// training goes on meanwhile. The schedule assumes one loss a minute: a job that seldom loses a server pays
// little for that, and a job that often does loses only seconds. The interval is at least a second and at
// most a minute, but long enough that checkpoints are being written for a tenth of the time at most.
class CheckpointSchedule {
 public:
  CheckpointSchedule(const v1::CheckpointConfig& config, absl::Time now);

  // `steps`: the job's steps so far.
  bool Due(absl::Time now, uint64_t steps) const;

  // A checkpoint at this many steps has begun.
  void Begun(absl::Time now, uint64_t steps);
  // The checkpoint that has begun is complete.
  void Completed(absl::Time now);
  // The checkpoint failed: the next try comes a little later.
  void Failed(absl::Time now);
  // The job goes back to this many steps.
  void Rewound(absl::Time now, uint64_t steps);

  // The current interval between two checkpoints; infinite if only steps count.
  absl::Duration interval() const;

 private:
  const uint64_t every_steps_;
  const absl::Duration every_;  // zero: by itself, unless steps say when
  absl::Time begun_;
  uint64_t steps_ = 0;  // at the last checkpoint
  absl::Time not_before_;
  absl::Duration took_;
};

}  // namespace weir
