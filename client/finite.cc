#include "client/finite.h"

#include <algorithm>

namespace weir {
namespace {

// 64 KiB: far below a cache, and far above what a call costs.
constexpr int64_t kBlock = 16384;
// The bits of infinity; those of a NaN are above it, once its sign is gone.
constexpr uint32_t kInfinity = 0x7f800000;
// Half way between bfloat16's largest and infinity: ties go to even, which infinity is.
constexpr uint32_t kBfloat16Infinity = 0x7f7f8000;

typedef uint32_t Bits __attribute__((may_alias));

// Inlined into one function a level, which the compiler vectorises at that level's width.
__attribute__((always_inline)) inline uint32_t Largest(const float* values, int64_t n) {
  const Bits* bits = reinterpret_cast<const Bits*>(values);
  uint32_t largest = 0;
  for (int64_t i = 0; i < n; ++i) largest = std::max<uint32_t>(largest, bits[i] & 0x7fffffff);
  return largest;
}

uint32_t LargestPlain(const float* values, int64_t n) { return Largest(values, n); }
__attribute__((target("avx2"))) uint32_t LargestAvx2(const float* values, int64_t n) {
  return Largest(values, n);
}
// GCC would stay with 256 bits; Clang does not know the setting.
#ifdef __clang__
#define WEIR_AVX512 __attribute__((target("avx512f")))
#else
#define WEIR_AVX512 __attribute__((target("avx512f,prefer-vector-width=512")))
#endif
WEIR_AVX512 uint32_t LargestAvx512(const float* values, int64_t n) { return Largest(values, n); }

// The bits of the largest magnitude.
using LargestOf = uint32_t (*)(const float* values, int64_t n);
LargestOf Widest() {
  if (__builtin_cpu_supports("avx512f")) return LargestAvx512;
  return __builtin_cpu_supports("avx2") ? LargestAvx2 : LargestPlain;
}

int64_t FirstFrom(uint32_t limit, const float* values, int64_t n) {
  static const LargestOf largest = Widest();
  int64_t i = 0;
  while (i < n && largest(values + i, std::min(kBlock, n - i)) < limit) i += kBlock;
  while (i < n && LargestPlain(values + i, 1) < limit) ++i;
  return std::min(i, n);
}

}  // namespace

int64_t FirstNonFinite(const float* values, int64_t n) { return FirstFrom(kInfinity, values, n); }

int64_t FirstNonFiniteBfloat16(const float* values, int64_t n) {
  return FirstFrom(kBfloat16Infinity, values, n);
}

}  // namespace weir
