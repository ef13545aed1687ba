#pragma once

#include <string>

#include "absl/status/statusor.h"
#include "common/model/model_spec.h"
#include "proto/job_config.pb.h"
#include "python/capi/weir_c.h"

struct weir_job {
  weir::v1::JobConfig config;
  std::string json;
};

namespace weir {

// Errors: InvalidArgument: an unknown initializer, or a model that ModelSpec::Validate() refuses.
absl::StatusOr<ModelSpec> ModelOf(const weir_tensor* tensors, size_t n);

}  // namespace weir
