#include "common/codec/finite.h"

#include <algorithm>

namespace weir {
namespace {

// 64 KiB of float32: far below a cache's size, and far above the cost of a call.
constexpr int64_t kBlock = 16384;

// A type's bits: all of them, those without the sign, and infinity's. Without its sign, a NaN is above
// infinity.
struct Float32 {
  typedef uint32_t Bits __attribute__((may_alias, aligned(1)));
  static constexpr uint32_t kMagnitude = 0x7fffffff, kInfinity = 0x7f800000;
};
struct Bfloat16 {
  typedef uint16_t Bits __attribute__((may_alias, aligned(1)));
  static constexpr uint32_t kMagnitude = 0x7fff, kInfinity = 0x7f80;
};
// The float32 half way between bfloat16's largest value and infinity: ties go to even, which infinity is.
constexpr uint32_t kRoundsToInfinity = 0x7f7f8000;

// Returns the bits of the largest magnitude. Inlined into one function per CPU level, which the compiler
// vectorises at that level's width.
template <typename Type>
__attribute__((always_inline)) inline uint32_t Largest(const void* values, int64_t n) {
  using Bits = typename Type::Bits;
  const Bits* const bits = static_cast<const Bits*>(values);
  Bits largest = 0;
  for (int64_t i = 0; i < n; ++i) {
    const auto magnitude = static_cast<Bits>(bits[i] & Type::kMagnitude);
    largest = largest < magnitude ? magnitude : largest;
  }
  return largest;
}

template <typename Type>
uint32_t LargestPlain(const void* values, int64_t n) {
  return Largest<Type>(values, n);
}
template <typename Type>
__attribute__((target("avx2"))) uint32_t LargestAvx2(const void* values, int64_t n) {
  return Largest<Type>(values, n);
}
// GCC would stay with 256 bits; Clang does not know the setting.
#ifdef __clang__
#define WEIR_AVX512 __attribute__((target("avx512f,avx512bw")))
#else
#define WEIR_AVX512 __attribute__((target("avx512f,avx512bw,prefer-vector-width=512")))
#endif
template <typename Type>
WEIR_AVX512 uint32_t LargestAvx512(const void* values, int64_t n) {
  return Largest<Type>(values, n);
}

using LargestOf = uint32_t (*)(const void* values, int64_t n);
template <typename Type>
LargestOf Widest() {
  if (__builtin_cpu_supports("avx512f") && __builtin_cpu_supports("avx512bw")) return LargestAvx512<Type>;
  return __builtin_cpu_supports("avx2") ? LargestAvx2<Type> : LargestPlain<Type>;
}

template <typename Type>
int64_t FirstFrom(uint32_t limit, const void* values, int64_t n) {
  static const LargestOf largest = Widest<Type>();
  const char* const begin = static_cast<const char*>(values);
  const auto at = [begin](int64_t i) {
    return begin + i * static_cast<int64_t>(sizeof(typename Type::Bits));
  };
  int64_t i = 0;
  while (i < n && largest(at(i), std::min(kBlock, n - i)) < limit) i += kBlock;
  while (i < n && LargestPlain<Type>(at(i), 1) < limit) ++i;
  return std::min(i, n);
}

}  // namespace

int64_t FirstNonFinite(const float* values, int64_t n) { return FirstNonFiniteAt(values, n); }

int64_t FirstNonFiniteAt(const void* float32, int64_t n) {
  return FirstFrom<Float32>(Float32::kInfinity, float32, n);
}

int64_t FirstNonFinite(const uint16_t* bfloat16, int64_t n) {
  return FirstFrom<Bfloat16>(Bfloat16::kInfinity, bfloat16, n);
}

int64_t FirstNonFiniteBfloat16(const float* values, int64_t n) {
  return FirstFrom<Float32>(kRoundsToInfinity, values, n);
}

}  // namespace weir
