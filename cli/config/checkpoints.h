#pragma once

#include <string>

#include "proto/job_config.pb.h"

namespace weir {

// Where and when the job saves itself, and so what the loss of a server means to it, in words. One line,
// without a line feed.
std::string DescribeCheckpoints(const v1::JobConfig& config);

}  // namespace weir
