#pragma once

#include <cstdint>

// Functions whose results have the same bits on every CPU, for what ends up in weights. They use + - * /
// alone, each rounded once. The functions of the C library have variants for the instructions of a CPU, whose
// last bits differ.
namespace weir {

// base^n, by squaring. 0^0 is 1.
double Power(double base, uint64_t n);

// base^exponent, for a base in (0, 1] that is not subnormal, and an exponent in (0, 100]. An exponent that is
// a whole number gives the bits of Power().
double RealPower(double base, double exponent);

// The natural logarithm of a finite x > 0 that is not subnormal.
double Ln(double x);

// Where a turn of `turns` in [0, 1) from (1, 0) ends on the unit circle: the cosine and sine of 2 pi turns.
struct CirclePoint {
  double cos, sin;
};
CirclePoint OnCircle(double turns);

}  // namespace weir
