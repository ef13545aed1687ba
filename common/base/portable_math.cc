#include "common/base/portable_math.h"

#include <cmath>
#include <cstddef>

namespace weir {
namespace {

constexpr double kHalfPi = 1.57079632679489662, kLn2 = 0.693147180559945309;

// The polynomials' coefficients, for the highest power first, which the compiler computes. Those of Taylor's
// series for cos x and (sin x) / x, in x^2.
constexpr int kTerms = 11;
struct Series {
  double cos[kTerms + 1] = {}, sin[kTerms + 1] = {}, ln[kTerms] = {}, exp[kTerms + 3] = {};
  constexpr Series() {
    double factorial = 1;  // of 2 k, with its sign
    for (int k = 0; k <= kTerms; ++k) {
      if (k > 0) factorial *= -(2 * k - 1) * (2 * k);
      cos[kTerms - k] = 1 / factorial;
      sin[kTerms - k] = 1 / (factorial * (2 * k + 1));
    }
    for (int k = 0; k < kTerms; ++k) ln[kTerms - 1 - k] = 1.0 / (2 * k + 1);
    factorial = 1;
    for (int k = 0; k < kTerms + 3; ++k) {
      if (k > 0) factorial *= k;
      exp[kTerms + 2 - k] = 1 / factorial;
    }
  }
};
constexpr Series kSeries;

template <size_t n>
double Sum(const double (&coefficients)[n], double x) {
  double sum = 0;
  for (const double coefficient : coefficients) sum = sum * x + coefficient;
  return sum;
}

// cos and sin of an angle in [0, pi / 2).
CirclePoint CosSin(double angle) {
  const double square = angle * angle;
  return {Sum(kSeries.cos, square), angle * Sum(kSeries.sin, square)};
}

// e^x for -10^5 < x <= 0.
double Exp(double x) {
  const double halvings = std::floor(-x / kLn2 + 0.5);
  return std::ldexp(Sum(kSeries.exp, x + halvings * kLn2), -static_cast<int>(halvings));
}

}  // namespace

double Power(double base, uint64_t n) {
  double power = 1;
  for (; n > 0; n >>= 1, base *= base) {
    if (n & 1) power *= base;
  }
  return power;
}

double RealPower(double base, double exponent) {
  const double whole = std::floor(exponent);
  return exponent == whole ? Power(base, static_cast<uint64_t>(whole)) : Exp(exponent * Ln(base));
}

double Ln(double x) {
  int exponent;
  double m = std::frexp(x, &exponent);  // exact: x = m 2^exponent, m in [0.5, 1)
  if (m < 0.70710678118654752) {
    m *= 2;
    --exponent;
  }
  // ln m = 2 (s + s^3 / 3 + s^5 / 5 + ...), |s| < 0.172
  const double s = (m - 1) / (m + 1);
  return exponent * kLn2 + 2 * s * Sum(kSeries.ln, s * s);
}

CirclePoint OnCircle(double turns) {
  const double quarters = turns * 4;  // exact, and so is the rest
  const int quadrant = static_cast<int>(quarters);
  const auto [cos, sin] = CosSin((quarters - quadrant) * kHalfPi);
  const CirclePoint points[4] = {{cos, sin}, {-sin, cos}, {-cos, -sin}, {sin, -cos}};
  return points[quadrant];
}

}  // namespace weir
