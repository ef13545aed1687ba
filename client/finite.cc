#include "client/finite.h"

#include <algorithm>
#include <cmath>

namespace weir {
namespace {

// 64 KiB: far below a cache, and far above what a call costs.
constexpr int64_t kBlock = 16384;
// The bits of infinity; those of a NaN are above it, once its sign is gone.
constexpr uint32_t kInfinity = 0x7f800000;

typedef uint32_t Bits __attribute__((may_alias));

// Inlined into one function a level, which the compiler vectorises at that level's width.
__attribute__((always_inline)) inline bool AllFinite(const float* values, int64_t n) {
  const Bits* bits = reinterpret_cast<const Bits*>(values);
  uint32_t largest = 0;
  for (int64_t i = 0; i < n; ++i) largest = std::max<uint32_t>(largest, bits[i] & 0x7fffffff);
  return largest < kInfinity;
}

bool AllFinitePlain(const float* values, int64_t n) { return AllFinite(values, n); }
__attribute__((target("avx2"))) bool AllFiniteAvx2(const float* values, int64_t n) {
  return AllFinite(values, n);
}
// GCC would stay with 256 bits; Clang does not know the setting.
#ifdef __clang__
#define WEIR_AVX512 __attribute__((target("avx512f")))
#else
#define WEIR_AVX512 __attribute__((target("avx512f,prefer-vector-width=512")))
#endif
WEIR_AVX512 bool AllFiniteAvx512(const float* values, int64_t n) { return AllFinite(values, n); }

using Check = bool (*)(const float* values, int64_t n);
Check Widest() {
  if (__builtin_cpu_supports("avx512f")) return AllFiniteAvx512;
  return __builtin_cpu_supports("avx2") ? AllFiniteAvx2 : AllFinitePlain;
}

}  // namespace

int64_t FirstNonFinite(const float* values, int64_t n) {
  static const Check all_finite = Widest();
  int64_t i = 0;
  while (i < n && all_finite(values + i, std::min(kBlock, n - i))) i += kBlock;
  while (i < n && std::isfinite(values[i])) ++i;
  return std::min(i, n);
}

}  // namespace weir
