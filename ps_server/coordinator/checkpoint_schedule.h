#pragma once

#include <cstdint>

#include "absl/time/time.h"
#include "proto/job_config.pb.h"

namespace weir {

// When the next checkpoint is due, by steps, by time, or by itself. Pure: told the time. Not thread-safe.
//
// By itself: the interval after which the work that a lost server costs and what saving costs are level is
// sqrt(2 * cost * mean time between losses) (Young 1974). The cost is taken to be the whole time that the
// last checkpoint took, though training goes on meanwhile, and one loss a minute is assumed: a job that is
// seldom hit pays little for it, one that is often hit loses seconds. At least a second, at most a minute,
// and never so often that more than a tenth of the time a checkpoint is being written.
class CheckpointSchedule {
 public:
  CheckpointSchedule(const v1::CheckpointConfig& config, absl::Time now);

  // `steps`: of the job so far.
  bool Due(absl::Time now, uint64_t steps) const;

  // One has begun, of this many steps.
  void Begun(absl::Time now, uint64_t steps);
  // The one that has begun is complete.
  void Completed(absl::Time now);
  // It came to nothing: the next is tried a little later.
  void Failed(absl::Time now);
  // The job goes back to this many steps.
  void Rewound(absl::Time now, uint64_t steps);

  // Between two, as it is now; infinite if only steps count.
  absl::Duration interval() const;

 private:
  const uint64_t every_steps_;
  const absl::Duration every_;  // zero: by itself, unless steps say when
  absl::Time begun_;
  uint64_t steps_ = 0;  // of the last
  absl::Time not_before_;
  absl::Duration took_;
};

}  // namespace weir
