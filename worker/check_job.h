#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "proto/job_config.pb.h"

namespace weir {

// What can be said about a job before it is started, without reading its data sets: whether their files exist
// and begin as they should, and whether the model fits them.
struct JobCheck {
  // For people: the data, the model.
  std::string data, model;
  // nullopt: the beginnings of the data's files do not say it.
  std::optional<int64_t> parameters;
  // At most what a worker on a CPU takes, in bytes, without the program itself and messages on their way:
  // both data sets, weights and gradients, and what a batch needs in each layer.
  std::optional<int64_t> worker_bytes;
  // What only the job itself will show.
  std::vector<std::string> unchecked;
};

// `config` has passed the job config's checks; its paths are absolute. Errors name the field or the file, as
// those of LoadData() and Model::Create() do.
absl::StatusOr<JobCheck> CheckJob(const v1::JobConfig& config);

}  // namespace weir
