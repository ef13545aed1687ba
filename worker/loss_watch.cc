#include "worker/loss_watch.h"

#include <algorithm>
#include <cmath>
#include <utility>

#include "absl/strings/str_cat.h"

namespace weir {

std::optional<std::string> LossWatch::OnBatch(double loss_sum, uint64_t examples) {
  if (factor_ == 0) return std::nullopt;
  if (!std::isfinite(loss_sum)) {
    if (++not_finite_ < kBatches) return std::nullopt;
    return absl::StrCat("the losses of the last ", not_finite_,
                        " batches are not finite (train.divergence = ", factor_, ")");
  }
  not_finite_ = 0;
  ++batches_;
  examples_ += examples;
  loss_sum_ += loss_sum;
  if (batches_ < (first_.has_value() ? kBatches : kFirstBatches)) return std::nullopt;
  const double loss = loss_sum_ / static_cast<double>(examples_);
  const uint64_t batches = std::exchange(batches_, 0);
  examples_ = 0;
  loss_sum_ = 0;
  if (!first_.has_value()) {
    first_ = lowest_ = loss;
    return std::nullopt;
  }
  if (loss > factor_ * lowest_ && loss > *first_) {
    return absl::StrCat("the mean loss of the last ", batches, " batches is ", loss,
                        ", the lowest before was ", lowest_, " (train.divergence = ", factor_, ")");
  }
  lowest_ = std::min(lowest_, loss);
  return std::nullopt;
}

}  // namespace weir
