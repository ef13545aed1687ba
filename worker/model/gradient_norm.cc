#include "worker/model/gradient_norm.h"

#include <cmath>
#include <cstddef>

namespace weir {

namespace {

double SumOfSquares(absl::Span<const float> values) {
  // Eight running sums: an order that is fixed and that the compiler can vectorise.
  double sums[8] = {};
  size_t i = 0;
  for (; i + 8 <= values.size(); i += 8) {
    for (size_t lane = 0; lane < 8; ++lane) {
      const double value = values[i + lane];
      sums[lane] += value * value;
    }
  }
  for (size_t lane = 0; i < values.size(); ++i, ++lane) sums[lane] += double{values[i]} * values[i];
  return ((sums[0] + sums[4]) + (sums[2] + sums[6])) + ((sums[1] + sums[5]) + (sums[3] + sums[7]));
}

}  // namespace

double GlobalNorm(absl::Span<const float> values) { return std::sqrt(SumOfSquares(values)); }

double ClipToNorm(double max_norm, absl::Span<const absl::Span<float>> pieces) {
  double squares = 0;
  for (const absl::Span<float> piece : pieces) squares += SumOfSquares(piece);
  const double norm = std::sqrt(squares);
  if (max_norm > 0 && norm > max_norm && std::isfinite(norm)) {
    const float scale = static_cast<float>(max_norm / norm);
    for (const absl::Span<float> piece : pieces) {
      for (float& value : piece) value *= scale;
    }
  }
  return norm;
}

}  // namespace weir
