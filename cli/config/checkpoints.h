#pragma once

#include <string>

#include "proto/job_config.pb.h"

namespace weir {

// Describes where and when the job takes checkpoints, and what the loss of a server then means to the job.
// Returns one line, without a line feed.
std::string DescribeCheckpoints(const v1::JobConfig& config);

}  // namespace weir
