#pragma once

#include "absl/status/statusor.h"
#include "common/model/model_spec.h"
#include "proto/model.pb.h"

namespace weir {

v1::Model ToProto(const ModelSpec& model);
// InvalidArgument: an unknown kind or initializer, or what ModelSpec::Validate() refuses.
absl::StatusOr<ModelSpec> FromProto(const v1::Model& model);

}  // namespace weir
