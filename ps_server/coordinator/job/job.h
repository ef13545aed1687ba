#pragma once

#include <cstdint>
#include <functional>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/time/time.h"
#include "common/system/clock.h"
#include "proto/checkpoint.pb.h"
#include "proto/coordinator.pb.h"
#include "proto/job_config.pb.h"

namespace weir {

// The facts that each part of a coordinator knows of the job, and the functions of the coordinator that it
// calls. Outlives the parts. Belongs to the coordinator's queue.
struct JobContext {
  const v1::JobConfig& config;
  // The number of workers that train.
  uint32_t workers = 1;
  const Clock* clock = &Clock::Real();
  // Runs a function in the coordinator's queue.
  std::function<void(std::function<void()>)> post;
  // Whether the job is done or has failed.
  std::function<bool()> over;
  // Ends the job as failed.
  std::function<void(const absl::Status& failure)> fail;
  // Called when another coordinator has the job; `why` names it.
  std::function<void(const std::string& why)> replaced;

  absl::Time now() const { return clock->Now(); }
  absl::Duration lease() const { return absl::Seconds(config.cluster().lease_seconds()); }
  absl::Duration grace() const { return absl::Seconds(config.cluster().grace_seconds()); }
};

// The length of a job. All 0: not known yet.
struct JobSize {
  uint64_t train_examples = 0;  // in the training set
  uint32_t parts = 0;           // of a step in sync; otherwise the configured workers
  uint64_t examples = 0;        // in all epochs, without examples that data.drop_last leaves out
  uint64_t dropped = 0;         // examples that data.drop_last leaves out
  uint64_t batches = 0;
  // In bounded and async: batches per worker.
  uint64_t steps = 0;
};

// The size of a job with this many workers and training examples, if it is not stopped early. `parts`: from a
// checkpoint; 0: from the config.
JobSize SizeOf(const v1::JobConfig& config, uint32_t workers, uint64_t train_examples, uint32_t parts = 0);

// InvalidArgument: data.drop_last leaves nothing to do. The message says how many examples there are, and how
// many are needed.
absl::Status CheckSize(const v1::JobConfig& config, const JobSize& size);

// `size` for a job that ends after this many examples and batches.
JobSize Shortened(const v1::JobConfig& config, uint32_t workers, const JobSize& size, uint64_t examples,
                  uint64_t batches);

// Whether a job with this config can continue from the checkpoint, whose position in the data must mean the
// same to it. FailedPrecondition: the message names the first difference.
absl::Status CanGoOn(const v1::JobConfig& config, const v1::CheckpointManifest& from);

// Whether the checkpoint is of the end of a job with this config, so that nothing is left to do. The end is
// durable before any worker may leave, so a process that missed the end finds it in the checkpoint. A job
// that a worker or train.max_seconds has ended is at its end as long as the config's `train` stays the same.
bool IsEndOf(const v1::JobConfig& config, const v1::CheckpointManifest& checkpoint);

// ---- which evaluated epoch is the best, and when training has stopped improving

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
