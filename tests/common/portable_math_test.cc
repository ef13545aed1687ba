#include "common/base/portable_math.h"

#include <cmath>
#include <cstdint>

#include "catch2/catch.hpp"

namespace weir {
namespace {

double Error(double got, double want) { return std::abs(got - want) / std::abs(want); }

TEST_CASE("Power is that of the C library, as exactly as its squarings allow") {
  CHECK(Power(0.5, 10) == 0x1p-10);
  CHECK((Power(0, 0) == 1 && Power(0, 3) == 0 && Power(7, 0) == 1 && Power(-2, 3) == -8));
  CHECK(Power(0.9, uint64_t{1} << 40) == 0);
  CHECK(Power(1, UINT64_MAX) == 1);
  for (const double base : {0.1, 0.9, 0.999, 0.9999999, 1.0001}) {
    for (uint64_t n = 1; n < 5000; n += 7) {
      const double want = std::pow(base, static_cast<double>(n));
      if (want > 1e-300) CHECK(Error(Power(base, n), want) < 2e-16 * static_cast<double>(n));
    }
  }
}

TEST_CASE("RealPower is that of the C library, and Power for whole exponents") {
  CHECK(RealPower(0.3, 7) == Power(0.3, 7));
  CHECK((RealPower(1, 0.3) == 1 && RealPower(0x1p-50, 99.5) == 0));
  for (const double exponent : {0.001, 0.5, 0.9, 1.5, 7.25, 99.9}) {
    for (double base = 0x1p-40; base < 1; base *= 1.037) {
      const double want = std::pow(base, exponent);
      // The error of the logarithm, times the exponent.
      if (want > 1e-300)
        CHECK(Error(RealPower(base, exponent), want) < 1e-15 * (1 + std::abs(std::log(want))));
    }
  }
}

TEST_CASE("Ln is that of the C library, to the last bits") {
  CHECK(Ln(1) == 0);
  for (int exponent = -1000; exponent <= 1000; exponent += 13) {
    for (double m = 1; m < 2; m += 0.00137) {
      const double x = std::ldexp(m, exponent), want = std::log(x);
      // Around 1 the terms of a sum cancel each other.
      CHECK(std::abs(Ln(x) - want) <= 3e-16 * std::abs(want) + (exponent == 0 || exponent == -1 ? 1e-16 : 0));
    }
  }
}

TEST_CASE("OnCircle is cosine and sine, to the last bits") {
  constexpr double kTwoPi = 6.283185307179586;
  for (double turns = 0; turns < 1; turns += 0.00001) {
    const CirclePoint point = OnCircle(turns);
    CHECK(std::abs(point.cos - std::cos(kTwoPi * turns)) < 1e-15);
    CHECK(std::abs(point.sin - std::sin(kTwoPi * turns)) < 1e-15);
  }
  CHECK((OnCircle(0).cos == 1 && OnCircle(0.25).sin == 1 && OnCircle(0.5).cos == -1 &&
         OnCircle(0.75).sin == -1));
}

}  // namespace
}  // namespace weir
