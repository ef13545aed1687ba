#pragma once

#include <cstdint>
#include <vector>

#include "absl/status/statusor.h"
#include "proto/job_config.pb.h"

namespace weir {

// The learning rate as a function of time, as the `schedule` of an optimizer describes it: the optimizer of
// the dense weights, or of a table. Every CPU gives the same bits. Immutable, hence thread-safe.
//
// Time t is the server's count of steps, from 0: in sync the step, otherwise the shard's version / configured
// workers, which may be fractional. With L = learning_rate, W = warmup_steps (or warmup_share of the job's
// steps), u = t - W, T = total_steps and f = final_factor:
//
//   t < W         L (floor(t) + 1) / W
//   constant      L
//   step          L gamma^floor(u / step_size)
//   multi_step    L gamma^(the number of milestones <= u)
//   exponential   L gamma^floor(u)
//   linear        L (f + (1 - f) (1 - u / T))                    for u < T, then L f
//   polynomial    L (f + (1 - f) (1 - u / T)^power)              for u < T, then L f
//   cosine        L (f + (1 - f) (1 + cos(pi u / T)) / 2)        for u < T, then L f
//   inverse_sqrt  L sqrt(n / (n + u)), where n = max(W, 1)
//   one_cycle     with s = start_factor and the peak at p = peak_share T - 1:
//                 L (s + (1 - s) (1 - cos(pi u / p)) / 2)        for u < p
//                 L (f + (1 - f) (1 + cos(pi (u - p) / (T - 1 - p))) / 2)  for u < T - 1, then L f
class LearningRateSchedule {
 public:
  // Without total_steps in the config, the schedule uses the steps of `job_steps` after the warm-up.
  // InvalidArgument: no type, or `step` without step_size.
  static absl::StatusOr<LearningRateSchedule> Create(double learning_rate, const v1::ScheduleConfig& config,
                                                     uint64_t job_steps);

  // t >= 0.
  double Rate(double t) const;

 private:
  LearningRateSchedule(double learning_rate, const v1::ScheduleConfig& config, uint64_t job_steps);
  // The rate after the warm-up, divided by the learning rate. u >= 0.
  double Factor(double u) const;

  double learning_rate_;
  v1::ScheduleConfig config_;
  double warmup_steps_;
  double total_steps_;
};

}  // namespace weir
