#pragma once

#include <cstddef>
#include <cstdint>
#include <cstring>

// For the codecs of this folder, whose loops are inlined into one function per CPU level, which the compiler
// vectorises at that level's width. No operation is fused with another (-ffp-contract=off), so the bits are
// the same everywhere.
#define WEIR_INLINE __attribute__((always_inline)) inline
#define WEIR_INLINE_LAMBDA __attribute__((always_inline))

namespace weir {

static_assert(__BYTE_ORDER__ == __ORDER_LITTLE_ENDIAN__, "values lie on the wire as in memory");

constexpr uint32_t kMostBits = 0x7b000000;  // kMostBlockValue
constexpr float kNaN = __builtin_nanf("");

WEIR_INLINE uint32_t BitsOf(float value) {
  uint32_t bits;
  std::memcpy(&bits, &value, sizeof bits);
  return bits;
}
WEIR_INLINE int32_t SignedBitsOf(float value) { return static_cast<int32_t>(BitsOf(value)); }
WEIR_INLINE float FloatOf(uint32_t bits) {
  float value;
  std::memcpy(&value, &bits, sizeof value);
  return value;
}
// The upper half of a finite float32, rounded to nearest, ties to even.
WEIR_INLINE uint16_t ToHalf(float value) {
  const uint32_t bits = BitsOf(value);
  return static_cast<uint16_t>((bits + 0x7fff + ((bits >> 16) & 1)) >> 16);
}

// sums = in + carried; carried: null for zeros.
WEIR_INLINE void AddCarried(const float* in, const float* carried, float* sums, size_t n) {
  for (size_t i = 0; i < n; ++i) sums[i] = carried == nullptr ? in[i] : in[i] + carried[i];
}

// The bits of the largest magnitude; a NaN is above all.
WEIR_INLINE uint32_t LargestBits(const float* in, size_t n) {
  int32_t largest = 0;
  for (size_t i = 0; i < n; ++i) {
    const int32_t magnitude = SignedBitsOf(in[i]) & 0x7fffffff;
    largest = largest < magnitude ? magnitude : largest;
  }
  return static_cast<uint32_t>(largest);
}

}  // namespace weir
