#pragma once

#include <cstddef>
#include <cstdint>
#include <vector>

// Conversions and checks of floats by their bits. Thread-safe.
namespace weir {

// bfloat16 is the upper half of a float32: its sign, its exponent and 7 of its 23 bits of fraction. On the
// wire it takes two bytes, little-endian. Both functions give the same bits on every CPU.

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

// float16 (IEEE 754 binary16) has a sign, 5 bits of exponent and 10 of fraction. Expands 2 n bytes,
// little-endian, at any address, exactly: every float16 is a float32, its subnormals too. A NaN keeps its
// payload.
void FromFloat16(const void* in, float* out, size_t n);

// The position of the first NaN or infinity among n values; n if all are finite. As fast as memory can be
// read. May read a value twice.
int64_t FirstNonFinite(const float* values, int64_t n);
// FirstNonFinite() of float32 values at any address.
int64_t FirstNonFiniteAt(const void* float32, int64_t n);
// FirstNonFinite() of bfloat16 values.
int64_t FirstNonFinite(const uint16_t* bfloat16, int64_t n);
// FirstNonFinite() of float32 values, where a value that bfloat16 rounds to infinity counts as infinite.
int64_t FirstNonFiniteBfloat16(const float* values, int64_t n);
// FirstNonFinite() of float32 values, where a magnitude above `most`, which is finite, counts as infinite.
int64_t FirstBeyond(const float* values, int64_t n, float most);

}  // namespace weir
