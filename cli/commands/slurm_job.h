#pragma once

#include <optional>
#include <string>
#include <vector>

#include "cli/commands/job_plan.h"

namespace weir {

// Runs a job in the allocation of SLURM that this process is in, with servers and workers over its nodes.
// Shows the summary, or the first cause of a failure, as `weir up` on one machine. On SIGUSR1, with which
// SLURM announces the end of the allocation, a job with checkpoints saves one and is queued again. Of the
// options, `cluster.log_dir` may be empty, and `cluster.tls` false means plain text. `array`: the workers are
// an array job of their own, with these options of sbatch. Returns the exit code.
int RunInAllocation(UpOptions options, const std::optional<std::vector<std::string>>& array);

}  // namespace weir
