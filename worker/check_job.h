#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "common/model/model_spec.h"
#include "proto/job_config.pb.h"

namespace weir {

// The result of the checks of a job before it is started: the files of its data sets exist and begin as they
// should (small ones are read whole), and the model fits them.
struct JobCheck {
  // For people: the data, the model.
  std::string data, model;
  // nullopt: the beginnings of the data's files do not say it.
  std::optional<ModelSpec> spec;
  // At most what a worker on a CPU takes, in bytes, without the program itself and messages on their way:
  // both data sets, weights and gradients, and what a batch needs in each layer.
  std::optional<int64_t> worker_bytes;
  // Questions that only the job itself will answer.
  std::vector<std::string> unchecked;
};

// `config` has passed the job config's checks; its paths are absolute. Errors name the field or the file, as
// those of LoadData() and Model::Create() do.
absl::StatusOr<JobCheck> CheckJob(const v1::JobConfig& config);

// Whether a job with this model can begin with the weights that checkpoint.init_from names.
absl::Status CheckInitFrom(const v1::JobConfig& config, const ModelSpec& model);

}  // namespace weir
