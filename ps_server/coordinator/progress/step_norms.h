#pragma once

#include <cstddef>
#include <cstdint>
#include <optional>
#include <set>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "common/base/exact_sum.h"
#include "common/model/model_spec.h"
#include "proto/job_config.pb.h"
#include "proto/shard_control.pb.h"

namespace weir {

// The norms over all shards on which the commit of a sync step depends: that of the mean gradient (train.clip
// "mean"), and those of each tensor's weights and update (the optimizer "lamb"). For each of the two there is
// one round, in this order: every shard measures its sums of squares, which are added up here. Sums are
// exact, so the norms are the same for any number of shards. A job that needs neither has no round.
//
// Belongs to the coordinator's queue.
class StepNorms {
 public:
  // Without a config: no norms are needed.
  StepNorms() = default;
  explicit StepNorms(const v1::JobConfig& config);

  bool needed() const { return max_norm_ > 0 || scales_tensors_; }

  // The parts of a step are decided, and stay so: begins its rounds. A step without parts needs no norms.
  void Begin(v1::CommitStep step, size_t shards, size_t tensors);
  // Whether Begin() was called for the open step.
  bool begun() const { return step_.has_value(); }
  // The step is committed, or the shards no longer have its parts.
  void Forget() { step_.reset(); }

  // The next question to all shards, once for each round. nullopt: answers are missing, or no round is
  // left.
  std::optional<v1::MeasureStep> NextRound();
  // Takes the answer of a shard. InvalidArgument: the answer does not fit the question.
  absl::Status OnMeasured(uint32_t shard, const v1::StepMeasured& measured);

  struct Commit {
    v1::CommitStep step;
    // Not empty: says which norm is not finite. `step` then has no parts.
    std::string not_finite;
  };
  // The commit with its factors; nullopt: not all is measured. `model` is for messages.
  std::optional<Commit> Ready(const ModelSpec& model) const;

 private:
  enum class Round { kGradient, kTensors, kDone };
  struct OfTensor {
    ExactSum weights, update;
  };
  void Enter(Round round);
  // The factor of the mean, once its norm is known.
  double GradientFactor() const;

  double max_norm_ = 0;  // 0: the mean is not clipped
  bool scales_tensors_ = false;

  // Of the open step, from Begin() on.
  std::optional<v1::CommitStep> step_;
  size_t shards_ = 0;
  Round round_ = Round::kDone;
  // The round's question, if it was asked, and the shards that have answered.
  std::optional<v1::MeasureStep> asked_;
  std::set<uint32_t> answered_;
  ExactSum gradient_;
  std::vector<OfTensor> tensors_;
};

}  // namespace weir
