#include "common/base/statistics.h"

#include <algorithm>
#include <cmath>
#include <cstddef>

namespace weir {

std::optional<double> AreaUnderCurve(std::vector<Score> scores) {
  if (std::any_of(scores.begin(), scores.end(), [](const Score& s) { return std::isnan(s.value); })) {
    return std::nullopt;
  }
  std::sort(scores.begin(), scores.end(), [](const Score& a, const Score& b) { return a.value < b.value; });
  // In halves of a pair, so that the count is exact.
  uint64_t halves = 0, positives = 0, negatives = 0;
  for (size_t first = 0, end; first < scores.size(); first = end) {
    uint64_t equal[2] = {0, 0};
    for (end = first; end < scores.size() && scores[end].value == scores[first].value; ++end) {
      ++equal[scores[end].positive ? 1 : 0];
    }
    halves += equal[1] * (2 * negatives + equal[0]);
    positives += equal[1];
    negatives += equal[0];
  }
  if (positives == 0 || negatives == 0) return std::nullopt;
  return static_cast<double>(halves) / 2 / static_cast<double>(positives) / static_cast<double>(negatives);
}

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
