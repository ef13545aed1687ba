#pragma once

#include <string>

#include "absl/status/status.h"
#include "proto/coordinator.pb.h"
#include "proto/job_config.pb.h"

namespace weir {

// The summary of a job that is over, as JSON, written in one piece (temporary file, rename), but for what is
// no file (/dev/stdout). Unavailable: names the file and why.
absl::Status WriteSummary(const v1::ClusterStatus& status, const v1::JobConfig& config,
                          const std::string& path);
// Whether that can succeed, before a long job is begun for it. FailedPrecondition: names the file.
absl::Status CheckSummaryPath(const std::string& path);
std::string SummaryJson(const v1::ClusterStatus& status, const v1::JobConfig& config);
// The same in one line, without the config, for where it could not be written.
std::string SummaryLine(const v1::ClusterStatus& status, const v1::JobConfig& config);

}  // namespace weir
