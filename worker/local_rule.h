#pragma once

#include "proto/job_config.pb.h"

namespace weir {

// Whether a worker pushes the result of steps of its own (LocalSteps). False also for one step of plain SGD
// with learning rate 1: base - (base - g) would round, and the push is g itself.
inline bool TakesLocalSteps(const v1::JobConfig& config) {
  if (!config.local().has_inner()) return false;
  const v1::OptimizerConfig& inner = config.local().inner();
  const v1::ScheduleConfig& schedule = inner.schedule();
  const bool constant = schedule.type() == v1::ScheduleConfig::SCHEDULE_CONSTANT &&
                        schedule.warmup_steps() == 0 && schedule.warmup_share() == 0;
  const bool identity = inner.type() == v1::OptimizerConfig::KIND_SGD && inner.learning_rate() == 1 &&
                        inner.weight_decay() == 0 && inner.l2() == 0 && inner.clip_weights() == 0 &&
                        inner.groups().empty() && constant;
  return config.local().steps() > 1 || !identity;
}

}  // namespace weir
