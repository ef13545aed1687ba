#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "absl/status/statusor.h"

namespace weir {

// Sizes that follow from a job's config and its data on this machine.
struct JobSizes {
  std::optional<int64_t> parameters;
  // The memory that a worker takes at most, without the program itself and messages in transit.
  std::optional<int64_t> worker_bytes;
  std::string unknown;  // why sizes are unknown, or what else is
};

// Asks the program `worker`, which reads the beginnings of the data's files. InvalidArgument: data are there
// and do not fit the model, or are damaged. NotFound, Internal: the program is not there or cannot run.
absl::StatusOr<JobSizes> FindJobSizes(const std::string& path, const std::vector<std::string>& overrides);

}  // namespace weir
