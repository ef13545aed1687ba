#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "absl/types/span.h"
#include "common/model/model_spec.h"
#include "common/optimizer/optimizer.h"
#include "common/optimizer/schedule.h"
#include "proto/job_config.pb.h"
#include "worker/data/dataset.h"

namespace weir {

// A second, independent implementation of a sync job, equal bit for bit: one loop over steps and parts, on
// whole tensors, in one thread. From the server it uses the optimizer and its sums of squares; from the
// worker the data, the model and the clipping. Local steps are a loop within a part, whose state with
// local.keep_state is never lost.

// The weights of a sync job and how a step changes them. Not thread-safe.
class SerialWeights {
 public:
  // One part of a step: a gradient over the whole address space, the mean over `examples` examples.
  struct Part {
    std::vector<float> gradient;
    uint64_t examples = 1;
  };

  // Version 0. `total_steps` is the length of the job.
  static absl::StatusOr<SerialWeights> Create(const v1::JobConfig& config, const ModelSpec& model,
                                              uint64_t total_steps);
  // Continues from these values, and the schedule at this step. Slots and count of updates begin anew, unless
  // they are kept.
  void Restart(absl::Span<const float> values, uint64_t step, bool keeps_state);
  // One optimizer step on the mean of the parts, weighted by examples, in the given order. At least one part.
  void Step(const std::vector<Part>& parts);

  absl::Span<const float> values() const { return values_; }
  uint64_t steps() const { return steps_; }

 private:
  SerialWeights(ModelSpec model, Optimizer optimizer, LearningRateSchedule schedule,
                std::vector<TensorSettings> settings);
  // Of values from this position of the address space on.
  static double NormOf(int64_t first, absl::Span<const float> values);
  // LAMB's factor of the learning rate. `args` are of a whole tensor.
  double FactorOf(ApplyArgs args, int64_t first) const;

  const ModelSpec model_;
  const Optimizer optimizer_;
  const LearningRateSchedule schedule_;
  const std::vector<TensorSettings> settings_;  // by tensor
  std::vector<float> values_;
  std::vector<std::vector<float>> slots_;
  uint64_t steps_ = 0;
  // The step at which they began.
  uint64_t first_step_ = 0;
  // The mean is clipped to this norm; 0: to none.
  double max_norm_ = 0;
};

struct SerialRun {
  std::vector<float> weights;
  std::string weights_sha256;
  uint64_t steps = 0;
};

// Trains the whole job. `config` sets consistency.parts.
absl::StatusOr<SerialRun> TrainSerially(const v1::JobConfig& config, const Dataset& train);

// As in a summary's weights_sha256.
std::string WeightsSha256(absl::Span<const float> weights);

}  // namespace weir
