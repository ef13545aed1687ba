#pragma once

#include "absl/status/status.h"

namespace weir {

// A push's weight in the mean of its step (v1.PushRequest.weight). A step has parts only in sync.

// So that the sum over a step's parts is finite.
inline constexpr double kMostPushWeight = 1e30;

// InvalidArgument: the weight is not 0, which stands for the push's examples, and is not in (0,
// kMostPushWeight], or the job has no steps: its mode is not sync.
absl::Status CheckPushWeight(double weight, bool sync);

}  // namespace weir
