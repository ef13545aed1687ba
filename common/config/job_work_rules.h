#pragma once

#include <string>

#include "common/config/proto_json.h"
#include "proto/job_config.pb.h"

// The part of job_config_rules.h that is about what a job computes: its model, its data, how long it is, and
// schedules of learning rates.
namespace weir {

// Adds a problem for each impossible combination of the fields of `model`, `data` and `train`.
void CheckWork(const v1::JobConfig& config, ConfigProblems* problems);

// Adds a problem for each impossible combination of fields, after FillWarmUps(). path: of the schedule.
void CheckSchedule(const v1::ScheduleConfig& schedule, const std::string& path, ConfigProblems* problems);

// Makes the warmup_epochs of all schedules shares of the job. A field that cannot be one stays, for
// CheckSchedule().
void FillWarmUps(v1::JobConfig* config);

}  // namespace weir
