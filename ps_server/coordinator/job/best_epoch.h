#pragma once

#include <string>
#include <vector>

#include "proto/coordinator.pb.h"
#include "proto/job_config.pb.h"

// Which evaluated epoch is the best, and when training has stopped improving.
namespace weir {

// Whether the job continues after an epoch's end only once the epoch's evaluation is known.
inline bool WaitsForEvaluations(const v1::EvaluationConfig& config) {
  return config.every_epochs() > 0 && (config.keep_best() || config.patience() > 0);
}

// Whether `one` is better than `other` by more than `min_delta`. Any result is better than none.
bool IsBetter(v1::EvaluationConfig::Metric metric, const v1::EpochEvaluation& one,
              const v1::EpochEvaluation& other, double min_delta = 0);

// Why config.patience ends the job after the newest of `epochs`, which rise. Empty: it does not. The job ends
// when none of the last `patience` results is better, by config.min_delta, than the best result before them.
// Epochs without a result do not count. The answer depends on these results alone, so a job that is started
// again stops at the same epoch.
std::string WhyStopped(const v1::EvaluationConfig& config, const std::vector<v1::EpochEvaluation>& epochs);

}  // namespace weir
