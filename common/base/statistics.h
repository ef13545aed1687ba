#pragma once

#include <cstdint>
#include <optional>
#include <vector>

namespace weir {

// A binary classifier's value for an example, and the truth.
struct Score {
  float value = 0;
  bool positive = false;
};

// The area under the ROC curve: the share of the pairs of a positive and a negative example in which the
// positive one has the larger value; equal values count half. Exact: in O(n log n) over all pairs. nullopt:
// there is no such pair, or a value is NaN.
std::optional<double> AreaUnderCurve(std::vector<Score> scores);

// How often each small integer was seen (version staleness, lead): exact, so quantiles are too. Values from
// kLimit on share one count. A value type; not thread-safe.
class IntHistogram {
 public:
  static constexpr uint64_t kLimit = 1024;

  void Add(uint64_t value, uint64_t times = 1);

  uint64_t count() const { return count_; }
  // The largest value, exact beyond kLimit as well; 0 when empty.
  uint64_t max() const { return max_; }
  // Nearest rank: the smallest value that at least q of all samples do not exceed. 0 <= q <= 1. A quantile
  // among the values from kLimit on is given as max(); 0 when empty.
  uint64_t Quantile(double q) const;

  // counts()[v] samples had value v; values past its end and below kLimit were not seen. overflow(): the
  // rest. To send a histogram over the wire: Add(v, counts()[v]) for each v, then Add(max(), overflow()).
  const std::vector<uint64_t>& counts() const { return counts_; }
  uint64_t overflow() const { return overflow_; }

 private:
  std::vector<uint64_t> counts_;
  uint64_t overflow_ = 0;
  uint64_t count_ = 0;
  uint64_t max_ = 0;
};

}  // namespace weir
