#pragma once

#include <cstdint>
#include <functional>
#include <string>

#include "absl/status/status.h"
#include "absl/time/time.h"
#include "common/system/clock.h"
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

}  // namespace weir
