#include "ps_server/table/initial_rows.h"

#include <algorithm>
#include <array>
#include <cmath>

#include "common/base/random.h"

namespace weir {
namespace {

constexpr double kHalfPi = 1.57079632679489662, kLn2 = 0.693147180559945309;

// x >= 1. Only + - * / are used, each rounded once.
double Ln(double x) {
  int exponent;
  double m = std::frexp(x, &exponent);  // exact: x = m 2^exponent, m in [0.5, 1)
  if (m < 0.70710678118654752) {
    m *= 2;
    --exponent;
  }
  // ln m = 2 (s + s^3 / 3 + s^5 / 5 + ...), |s| < 0.172
  const double s = (m - 1) / (m + 1), square = s * s;
  double sum = 0;
  for (int k = 21; k >= 1; k -= 2) sum = sum * square + 1.0 / k;
  return exponent * kLn2 + 2 * s * sum;
}

// cos and sin of an angle in [0, pi / 2), by Taylor's series.
void CosSin(double angle, double* cos, double* sin) {
  const double square = angle * angle;
  double c = 1, s = 1;
  for (int k = 22; k >= 2; k -= 2) {
    c = 1 - c * square / (k * (k - 1));
    s = 1 - s * square / (k * (k + 1));
  }
  *cos = c;
  *sin = s * angle;
}

// Two independent normal values of deviation 1 from 64 random bits.
void TwoNormals(uint32_t bits1, uint32_t bits2, double out[2]) {
  const double radius = std::sqrt(-2 * (Ln(static_cast<double>(bits1) + 1) - 32 * kLn2));
  // The quadrant, and the angle in it.
  double cos, sin;
  CosSin(static_cast<double>(bits2 & 0x3fffffff) * 0x1p-30 * kHalfPi, &cos, &sin);
  const double circle[4][2] = {{cos, sin}, {-sin, cos}, {-cos, -sin}, {sin, -cos}};
  for (int i = 0; i < 2; ++i) out[i] = radius * circle[bits2 >> 30][i];
}

}  // namespace

InitialRows::InitialRows(uint64_t seed, const std::string& table, const Initializer& init)
    : init_(init), random_key_(RandomKey(seed, "table " + table)) {}

void InitialRows::Fill(uint64_t key, float* out, size_t dim) const {
  if (init_.kind == Initializer::Kind::kConstant) {
    std::fill_n(out, dim, init_.value);
    return;
  }
  for (size_t first = 0; first < dim; first += 4) {
    const std::array<uint32_t, 4> words = Philox(random_key_, key, first / 4);
    std::array<float, 4> values;
    if (init_.kind == Initializer::Kind::kUniform) {
      for (size_t i = 0; i < 4; ++i) values[i] = (2.0f * UniformFloat(words[i]) - 1.0f) * init_.value;
    } else {
      for (size_t i = 0; i < 4; i += 2) {
        double normals[2];
        TwoNormals(words[i], words[i + 1], normals);
        for (size_t k = 0; k < 2; ++k) values[i + k] = static_cast<float>(normals[k] * init_.value);
      }
    }
    std::copy_n(values.begin(), std::min<size_t>(4, dim - first), out + first);
  }
}

}  // namespace weir
