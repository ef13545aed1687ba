#pragma once

#include <cstdint>

// The windows of batches whose mean losses train.divergence compares (v1.LossWindow).
namespace weir {

// The batches of a window, and of the first window of a worker: training that diverges often does so from the
// start.
inline constexpr uint64_t kLossWindow = 50, kFirstLossWindow = 5;
// The most windows that one report has.
inline constexpr int kMaxLossWindows = 32;

}  // namespace weir
