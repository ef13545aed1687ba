#include "common/codec/bfloat16.h"

#include <cstdint>

namespace weir {
namespace {

static_assert(__BYTE_ORDER__ == __ORDER_LITTLE_ENDIAN__,
              "values are copied to and from the wire as they are");

// May lie at any address, and may alias what other code writes as bytes.
typedef uint16_t AnyHalf __attribute__((aligned(1), may_alias));
typedef uint32_t Bits __attribute__((may_alias));

// The loops are inlined into one function per CPU level, which the compiler vectorises at that level's width.
// They use only integer arithmetic, so the bits are the same everywhere.
__attribute__((always_inline)) inline void To(const float* in, void* out, size_t n) {
  const Bits* from = reinterpret_cast<const Bits*>(in);
  AnyHalf* to = static_cast<AnyHalf*>(out);
#pragma GCC ivdep
  for (size_t i = 0; i < n; ++i) {
    const uint32_t bits = from[i];
    const uint32_t rounded = bits + 0x7fff + ((bits >> 16) & 1);
    const uint32_t quiet = bits | 0x00400000;
    to[i] = static_cast<uint16_t>(((bits & 0x7fffffff) > 0x7f800000 ? quiet : rounded) >> 16);
  }
}

__attribute__((always_inline)) inline void From(const void* in, float* out, size_t n) {
  const AnyHalf* from = static_cast<const AnyHalf*>(in);
  Bits* to = reinterpret_cast<Bits*>(out);
#pragma GCC ivdep
  for (size_t i = 0; i < n; ++i) to[i] = static_cast<uint32_t>(from[i]) << 16;
}

void ToPlain(const float* in, void* out, size_t n) { To(in, out, n); }
void FromPlain(const void* in, float* out, size_t n) { From(in, out, n); }

#define WEIR_AVX2 __attribute__((target("avx2")))
WEIR_AVX2 void ToAvx2(const float* in, void* out, size_t n) { To(in, out, n); }
WEIR_AVX2 void FromAvx2(const void* in, float* out, size_t n) { From(in, out, n); }

// GCC would stay with 256 bits; Clang does not know the setting.
#ifdef __clang__
#define WEIR_AVX512 __attribute__((target("avx512f,avx512bw,avx512dq,avx512vl")))
#else
#define WEIR_AVX512 __attribute__((target("avx512f,avx512bw,avx512dq,avx512vl,prefer-vector-width=512")))
#endif
WEIR_AVX512 void ToAvx512(const float* in, void* out, size_t n) { To(in, out, n); }
WEIR_AVX512 void FromAvx512(const void* in, float* out, size_t n) { From(in, out, n); }

const Bfloat16Level& Best() {
  // Our own table, not the linker's (target_clones), whose resolvers run before a sanitizer is ready.
  static const Bfloat16Level best = AvailableBfloat16Levels().back();
  return best;
}

}  // namespace

std::vector<Bfloat16Level> AvailableBfloat16Levels() {
  // __builtin_cpu_supports also asks whether the operating system saves the wide registers.
  std::vector<Bfloat16Level> levels = {{"plain", ToPlain, FromPlain}};
  if (__builtin_cpu_supports("avx2")) levels.push_back({"avx2", ToAvx2, FromAvx2});
  if (__builtin_cpu_supports("avx512f") && __builtin_cpu_supports("avx512bw") &&
      __builtin_cpu_supports("avx512dq") && __builtin_cpu_supports("avx512vl")) {
    levels.push_back({"avx512", ToAvx512, FromAvx512});
  }
  return levels;
}

void ToBfloat16(const float* in, void* out, size_t n) { Best().to(in, out, n); }
void FromBfloat16(const void* in, float* out, size_t n) { Best().from(in, out, n); }

}  // namespace weir
