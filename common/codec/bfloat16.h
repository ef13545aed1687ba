#pragma once

#include <cstddef>
#include <vector>

namespace weir {

// bfloat16 is the upper half of a float32: its sign, its exponent and 7 of its 23 bits of fraction. On the
// wire it takes two bytes, little-endian. Both functions are thread-safe and give the same bits on every CPU.

// Rounds n values to nearest, ties to even, into 2 n bytes at any address. A value beyond the largest becomes
// an infinity, as in any rounding; subnormals are kept; a NaN stays a NaN, made quiet, with the upper bits of
// its payload.
void ToBfloat16(const float* in, void* out, size_t n);

// Expands 2 n bytes at any address, exactly: every bfloat16 is a float32. Each value is read once, so the
// values may lie in memory that another process writes.
void FromBfloat16(const void* in, float* out, size_t n);

// Both functions, built for one set of CPU instructions.
struct Bfloat16Level {
  const char* name;  // "plain", "avx2", "avx512"
  void (*to)(const float* in, void* out, size_t n);
  void (*from)(const void* in, float* out, size_t n);
};

// The levels that can run here, from narrow to wide. The functions above use the last.
std::vector<Bfloat16Level> AvailableBfloat16Levels();

}  // namespace weir
