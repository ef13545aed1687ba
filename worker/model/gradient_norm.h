#pragma once

#include "absl/types/span.h"

namespace weir {

// The L2 norm of all values together, summed in float64 in a fixed order, so that it is the same wherever it
// is computed.
double GlobalNorm(absl::Span<const float> values);

// Scales `values` down to the norm max_norm if theirs is larger; a norm that is not finite leaves them as
// they are, for whoever checks gradients to find. max_norm 0 is off. Returns the norm before.
double ClipToNorm(double max_norm, absl::Span<float> values);

}  // namespace weir
