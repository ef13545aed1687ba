#include "common/codec/float16.h"

#include <cstdint>
#include <cstring>

namespace weir {
namespace {

static_assert(__BYTE_ORDER__ == __ORDER_LITTLE_ENDIAN__, "values are read as they lie in files");

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

}  // namespace

void FromFloat16(const void* in, float* out, size_t n) {
  for (size_t i = 0; i < n; ++i) {
    uint16_t half;
    std::memcpy(&half, static_cast<const char*>(in) + i * sizeof half, sizeof half);
    const uint32_t bits = Expanded(half);
    std::memcpy(out + i, &bits, sizeof bits);
  }
}

}  // namespace weir
