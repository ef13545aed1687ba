#pragma once

#include <cstdint>
#include <vector>

#include "absl/types/span.h"
#include "proto/job_config.pb.h"
#include "worker/data/dataset.h"
#include "worker/model/layer.h"

namespace weir {

// The sum of the examples' losses under a model config, computed the plain way in float64, without any code
// of worker/model or worker/compute. weights: all tensors end to end, each layer's weight before its bias.
// Dropout acts as in training.
double ReferenceLoss(const v1::ModelConfig& config, const std::vector<int64_t>& input_shape,
                     absl::Span<const double> weights, const Batch& batch, const RandomContext& random);

}  // namespace weir
