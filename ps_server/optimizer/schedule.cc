#include "ps_server/optimizer/schedule.h"

#include <cmath>

#include "common/base/portable_math.h"
#include "proto/job_config.pb.h"

namespace weir {

absl::StatusOr<LearningRateSchedule> LearningRateSchedule::Create(double learning_rate,
                                                                  const v1::ScheduleConfig& from,
                                                                  uint64_t job_steps) {
  LearningRateSchedule schedule;
  schedule.learning_rate_ = learning_rate;
  schedule.warmup_steps_ = static_cast<double>(from.warmup_steps());
  switch (from.type()) {
    case v1::ScheduleConfig::SCHEDULE_CONSTANT:
      schedule.kind_ = Kind::kConstant;
      return schedule;
    case v1::ScheduleConfig::SCHEDULE_STEP:
      if (from.step_size() == 0) {
        return absl::InvalidArgumentError(
            "optimizer.schedule.step_size: not set; a schedule of type \"step\" needs it, at least 1");
      }
      schedule.kind_ = Kind::kStep;
      schedule.step_size_ = static_cast<double>(from.step_size());
      schedule.gamma_ = from.gamma();
      return schedule;
    case v1::ScheduleConfig::SCHEDULE_COSINE:
      schedule.kind_ = Kind::kCosine;
      // Without total_steps in the config, the cosine ends with the job, however long the warm-up is.
      schedule.total_steps_ =
          from.has_total_steps()
              ? static_cast<double>(from.total_steps())
              : static_cast<double>(job_steps > from.warmup_steps() ? job_steps - from.warmup_steps() : 1);
      schedule.final_factor_ = from.final_factor();
      return schedule;
    case v1::ScheduleConfig::SCHEDULE_UNSPECIFIED:
      break;
  }
  return absl::InvalidArgumentError("optimizer.schedule.type: not set; it is one of constant, step, cosine");
}

double LearningRateSchedule::Rate(double t) const {
  if (t < warmup_steps_) return learning_rate_ * (std::floor(t) + 1) / warmup_steps_;
  const double u = t - warmup_steps_;
  switch (kind_) {
    case Kind::kConstant:
      break;
    case Kind::kStep:
      return learning_rate_ * Power(gamma_, static_cast<uint64_t>(u / step_size_));
    case Kind::kCosine: {
      if (u >= total_steps_) return learning_rate_ * final_factor_;
      const double half_cosine = (1 + OnCircle(u / total_steps_ / 2).cos) / 2;
      return learning_rate_ * (final_factor_ + (1 - final_factor_) * half_cosine);
    }
  }
  return learning_rate_;
}

}  // namespace weir
