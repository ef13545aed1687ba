#pragma once

#include "absl/types/span.h"

namespace weir {

// The L2 norm of all values together, summed in float64 in a fixed order, so that it is the same wherever it
// is computed.
double GlobalNorm(absl::Span<const float> values);

// Scales the values of all pieces down to the norm max_norm if their norm together is larger. A norm that is
// not finite leaves them as they are, so that the check of gradients finds it. max_norm 0 is off. Returns the
// norm before scaling.
double ClipToNorm(double max_norm, absl::Span<const absl::Span<float>> pieces);

}  // namespace weir
