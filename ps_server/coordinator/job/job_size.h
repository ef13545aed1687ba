#pragma once

#include <cstdint>

#include "absl/status/status.h"
#include "proto/checkpoint.pb.h"
#include "proto/job_config.pb.h"

namespace weir {

// The length of a job. All 0: not known yet.
struct JobSize {
  uint64_t train_examples = 0;  // in the training set
  uint32_t parts = 0;           // of a step, in sync
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
// durable before any worker may leave, so a process that missed the end finds it in the checkpoint.
bool IsEndOf(const v1::JobConfig& config, const v1::CheckpointManifest& checkpoint);

}  // namespace weir
