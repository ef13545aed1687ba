#pragma once

#include <cstdint>
#include <vector>

#include "absl/types/span.h"
#include "client/types.h"
#include "common/model/model_spec.h"

namespace weir {

// The model's tensors in flat memory that holds them end to end, in its order.
std::vector<MutableTensor> TensorsOf(const ModelSpec& spec, absl::Span<float> flat);
std::vector<ConstTensor> TensorsOf(const ModelSpec& spec, absl::Span<const float> flat);
// A gradient that is bfloat16 already.
std::vector<ConstTensor> TensorsOf(const ModelSpec& spec, absl::Span<const uint16_t> flat);

}  // namespace weir
