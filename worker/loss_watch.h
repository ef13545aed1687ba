#pragma once

#include <cstdint>
#include <optional>
#include <string>

namespace weir {

// Finds training that diverges (train.divergence), by the mean loss of windows of batches: a window diverges
// when its loss is above `factor` times the lowest window before it, and above the first window. The second
// condition is there because a loss that has come close to 0 may rise by any factor and still be small.
//
// A loss that is not finite counts in no window: one bad example need not end the job
// (consistency.on_nonfinite). As many of them in a row as a window has batches diverge. Not thread-safe.
class LossWatch {
 public:
  // The first window is short: training that diverges often does so from the start.
  static constexpr uint64_t kFirstBatches = 5, kBatches = 50;

  // factor 0: finds nothing.
  explicit LossWatch(double factor) : factor_(factor) {}

  // loss_sum: over the batch's examples. Returns what was found, in words, once training diverges.
  std::optional<std::string> OnBatch(double loss_sum, uint64_t examples);

 private:
  const double factor_;
  // The open window.
  uint64_t batches_ = 0, examples_ = 0;
  double loss_sum_ = 0;
  // Batches since the last finite loss.
  uint64_t not_finite_ = 0;
  // Mean losses.
  std::optional<double> first_;
  double lowest_ = 0;
};

}  // namespace weir
