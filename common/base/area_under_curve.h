#pragma once

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

}  // namespace weir
