#include "common/codec/floats.h"

#include <algorithm>
#include <cstring>

#include "common/base/cpu_levels.h"

namespace weir {
namespace {

static_assert(__BYTE_ORDER__ == __ORDER_LITTLE_ENDIAN__, "values lie on the wire and in files as in memory");

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
WEIR_AVX2 void ToAvx2(const float* in, void* out, size_t n) { To(in, out, n); }
WEIR_AVX2 void FromAvx2(const void* in, float* out, size_t n) { From(in, out, n); }
WEIR_AVX512 void ToAvx512(const float* in, void* out, size_t n) { To(in, out, n); }
WEIR_AVX512 void FromAvx512(const void* in, float* out, size_t n) { From(in, out, n); }

const Bfloat16Level& Best() {
  // Our own table, not the linker's (target_clones), whose resolvers run before a sanitizer is ready.
  static const Bfloat16Level best = AvailableBfloat16Levels().back();
  return best;
}

uint32_t Expanded(uint16_t half) {
  constexpr int kFraction = 23 - 10;                    // by how much wider the fraction becomes
  constexpr uint32_t kBias = uint32_t{127 - 15} << 23;  // between the exponents
  const uint32_t sign = static_cast<uint32_t>(half & 0x8000) << 16;
  const uint32_t magnitude = half & 0x7fff;
  if (magnitude >= 0x7c00) return sign | 0x7f800000 | (magnitude & 0x3ff) << kFraction;  // infinity, NaN
  if (magnitude >= 0x0400) return sign | ((magnitude << kFraction) + kBias);
  // Zero and subnormals count units of 2^-24, which are normal in float32.
  const float value = static_cast<float>(magnitude) * 0x1p-24f;
  uint32_t bits;
  std::memcpy(&bits, &value, sizeof bits);
  return sign | bits;
}

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
WEIR_AVX2 uint32_t LargestAvx2(const void* values, int64_t n) {
  return Largest<Type>(values, n);
}
template <typename Type>
WEIR_AVX512 uint32_t LargestAvx512(const void* values, int64_t n) {
  return Largest<Type>(values, n);
}

using LargestOf = uint32_t (*)(const void* values, int64_t n);
template <typename Type>
LargestOf Widest() {
  return HasAvx512() ? LargestAvx512<Type> : HasAvx2() ? LargestAvx2<Type> : LargestPlain<Type>;
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

std::vector<Bfloat16Level> AvailableBfloat16Levels() {
  std::vector<Bfloat16Level> levels = {{"plain", ToPlain, FromPlain}};
  if (HasAvx2()) levels.push_back({"avx2", ToAvx2, FromAvx2});
  if (HasAvx512()) levels.push_back({"avx512", ToAvx512, FromAvx512});
  return levels;
}

void ToBfloat16(const float* in, void* out, size_t n) { Best().to(in, out, n); }
void FromBfloat16(const void* in, float* out, size_t n) { Best().from(in, out, n); }

void FromFloat16(const void* in, float* out, size_t n) {
  for (size_t i = 0; i < n; ++i) {
    uint16_t half;
    std::memcpy(&half, static_cast<const char*>(in) + i * sizeof half, sizeof half);
    const uint32_t bits = Expanded(half);
    std::memcpy(out + i, &bits, sizeof bits);
  }
}

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

int64_t FirstBeyond(const float* values, int64_t n, float most) {
  uint32_t bits;
  std::memcpy(&bits, &most, sizeof bits);
  return FirstFrom<Float32>(bits + 1, values, n);
}

}  // namespace weir
