#include "common/telemetry/int_histogram.h"

#include <algorithm>
#include <cmath>

namespace weir {

void IntHistogram::Add(uint64_t value, uint64_t times) {
  if (times == 0) return;
  if (value < kLimit) {
    if (value >= counts_.size()) counts_.resize(value + 1);
    counts_[value] += times;
  } else {
    overflow_ += times;
  }
  count_ += times;
  max_ = std::max(max_, value);
}

uint64_t IntHistogram::Quantile(double q) const {
  const auto rank = static_cast<uint64_t>(std::ceil(q * static_cast<double>(count_)));
  uint64_t seen = 0;
  for (size_t v = 0; v < counts_.size(); ++v) {
    seen += counts_[v];
    if (seen > 0 && seen >= rank) return v;
  }
  return max_;
}

}  // namespace weir
