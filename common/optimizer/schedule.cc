#include "common/optimizer/schedule.h"

#include <algorithm>
#include <cmath>

#include "common/base/portable_math.h"

namespace weir {
namespace {

// From 1 at x = 0 down to 0 at x = 1, along half a cosine. x in [0, 1).
double HalfCosine(double x) { return (1 + OnCircle(x / 2).cos) / 2; }

}  // namespace

absl::StatusOr<LearningRateSchedule> LearningRateSchedule::Create(double learning_rate,
                                                                  const v1::ScheduleConfig& config,
                                                                  uint64_t job_steps) {
  if (config.type() == v1::ScheduleConfig::SCHEDULE_UNSPECIFIED) {
    return absl::InvalidArgumentError(
        "optimizer.schedule.type: not set; it is one of constant, step, cosine, linear, polynomial, "
        "exponential, inverse_sqrt, one_cycle, multi_step");
  }
  if (config.type() == v1::ScheduleConfig::SCHEDULE_STEP && config.step_size() == 0) {
    return absl::InvalidArgumentError(
        "optimizer.schedule.step_size: not set; a schedule of type \"step\" needs it, at least 1");
  }
  return LearningRateSchedule(learning_rate, config, job_steps);
}

LearningRateSchedule::LearningRateSchedule(double learning_rate, const v1::ScheduleConfig& config,
                                           uint64_t job_steps)
    : learning_rate_(learning_rate),
      config_(config),
      warmup_steps_(config.has_warmup_share()
                        ? std::round(config.warmup_share() * static_cast<double>(job_steps))
                        : static_cast<double>(config.warmup_steps())),
      // Without total_steps in the config, the schedule ends with the job, however long the warm-up is.
      total_steps_(config.has_total_steps() ? static_cast<double>(config.total_steps())
                                            : std::max(1.0, static_cast<double>(job_steps) - warmup_steps_)) {
}

double LearningRateSchedule::Rate(double t) const {
  if (t < warmup_steps_) return learning_rate_ * (std::floor(t) + 1) / warmup_steps_;
  return learning_rate_ * Factor(t - warmup_steps_);
}

double LearningRateSchedule::Factor(double u) const {
  const double lowest = config_.final_factor();
  const auto down = [lowest](double left) { return lowest + (1 - lowest) * left; };
  switch (config_.type()) {
    case v1::ScheduleConfig::SCHEDULE_UNSPECIFIED:  // refused by Create()
    case v1::ScheduleConfig::SCHEDULE_CONSTANT:
      return 1;
    case v1::ScheduleConfig::SCHEDULE_STEP:
      return Power(config_.gamma(), static_cast<uint64_t>(u / static_cast<double>(config_.step_size())));
    case v1::ScheduleConfig::SCHEDULE_EXPONENTIAL:
      return Power(config_.gamma(), static_cast<uint64_t>(u));
    case v1::ScheduleConfig::SCHEDULE_MULTI_STEP: {
      const auto& all = config_.milestones();
      const auto passed = std::upper_bound(all.begin(), all.end(), static_cast<uint64_t>(u)) - all.begin();
      return Power(config_.gamma(), static_cast<uint64_t>(passed));
    }
    case v1::ScheduleConfig::SCHEDULE_INVERSE_SQRT: {
      const double n = std::max(1.0, warmup_steps_);
      return std::sqrt(n / (n + u));
    }
    case v1::ScheduleConfig::SCHEDULE_LINEAR:
      return u < total_steps_ ? down(1 - u / total_steps_) : lowest;
    case v1::ScheduleConfig::SCHEDULE_POLYNOMIAL:
      return u < total_steps_ ? down(RealPower(1 - u / total_steps_, config_.power())) : lowest;
    case v1::ScheduleConfig::SCHEDULE_COSINE:
      return u < total_steps_ ? down(HalfCosine(u / total_steps_)) : lowest;
    case v1::ScheduleConfig::SCHEDULE_ONE_CYCLE: {
      const double peak = config_.peak_share() * total_steps_ - 1, end = total_steps_ - 1;
      if (u < peak) return 1 - (1 - config_.start_factor()) * HalfCosine(u / peak);
      return u < end ? down(HalfCosine((u - peak) / (end - peak))) : lowest;
    }
  }
  return 1;
}

}  // namespace weir
