#pragma once

#include <string>

#include "absl/status/status.h"
#include "proto/coordinator.pb.h"
#include "proto/job_config.pb.h"

namespace weir {

// The summary of a job that is over, as JSON, written in one piece (temporary file, rename). Unavailable:
// names the file.
absl::Status WriteSummary(const v1::ClusterStatus& status, const v1::JobConfig& config,
                          const std::string& path);
// Whether that can succeed, before a long job is begun for it. FailedPrecondition: names the file.
absl::Status CheckSummaryPath(const std::string& path);
std::string SummaryJson(const v1::ClusterStatus& status, const v1::JobConfig& config);

}  // namespace weir
