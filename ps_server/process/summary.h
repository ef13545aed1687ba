#pragma once

#include <string>

#include "absl/status/status.h"
#include "proto/coordinator.pb.h"
#include "proto/job_config.pb.h"

namespace weir {

// Writes the summary of a job that is over, as JSON, atomically (temporary file, rename) unless the path is
// no regular file (/dev/stdout). Unavailable: the message names the file and the reason.
absl::Status WriteSummary(const v1::ClusterStatus& status, const v1::JobConfig& config,
                          const std::string& path);
// Checks before a long job that WriteSummary() can succeed. FailedPrecondition: names the file.
absl::Status CheckSummaryPath(const std::string& path);
std::string SummaryJson(const v1::ClusterStatus& status, const v1::JobConfig& config);
// The summary in one line, without the config, for the log if the file cannot be written.
std::string SummaryLine(const v1::ClusterStatus& status, const v1::JobConfig& config);

}  // namespace weir
