#pragma once

#include <cstdint>

#include "absl/status/statusor.h"

namespace weir {

namespace v1 {
class ScheduleConfig;
}

// The learning rate as a function of time, as the `schedule` of an optimizer describes it: the optimizer of
// the dense weights, or of a table. Every CPU gives the same bits. Immutable, hence thread-safe.
//
// Time t is the server's count of steps, from 0: in sync the step, otherwise the shard's version / configured
// workers, which may be fractional. With L = learning_rate, W = warmup_steps and u = t - W:
//
//   t < W      L (floor(t) + 1) / W
//   constant   L
//   step       L gamma^floor(u / step_size)
//   cosine     L (f + (1 - f) (1 + cos(pi u / total_steps)) / 2) for u < total_steps, then L f,
//              where f = final_factor
class LearningRateSchedule {
 public:
  // Without total_steps in the config, the schedule uses the steps of `job_steps` after the warm-up.
  // InvalidArgument: no type, or `step` without step_size.
  static absl::StatusOr<LearningRateSchedule> Create(double learning_rate, const v1::ScheduleConfig& config,
                                                     uint64_t job_steps);

  // t >= 0.
  double Rate(double t) const;

 private:
  enum class Kind { kConstant, kStep, kCosine };
  LearningRateSchedule() = default;

  Kind kind_ = Kind::kConstant;
  double learning_rate_ = 0;
  double warmup_steps_ = 0;
  double step_size_ = 1;
  double gamma_ = 1;
  double total_steps_ = 1;
  double final_factor_ = 0;
};

}  // namespace weir
