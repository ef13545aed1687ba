#pragma once

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
  // What only the job itself will show.
  std::vector<std::string> unchecked;
};

// `config` has passed the job config's checks; its paths are absolute. Errors name the field or the file, as
// those of LoadData() and Model::Create() do.
absl::StatusOr<JobCheck> CheckJob(const v1::JobConfig& config);

}  // namespace weir
