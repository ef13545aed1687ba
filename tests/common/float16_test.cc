#include <cmath>
#include <cstdint>
#include <cstring>
#include <limits>
#include <vector>

#include "catch2/catch.hpp"
#include "common/codec/floats.h"

namespace weir {
namespace {

uint32_t ToBits(float f) {
  uint32_t bits;
  std::memcpy(&bits, &f, sizeof bits);
  return bits;
}

// The definition, without NaN.
float Slow(uint16_t half) {
  const int exponent = (half >> 10) & 31, fraction = half & 1023;
  const float magnitude = exponent == 31  ? std::numeric_limits<float>::infinity()
                          : exponent == 0 ? std::ldexp(static_cast<float>(fraction), -24)
                                          : std::ldexp(static_cast<float>(1024 + fraction), exponent - 25);
  return (half & 0x8000) != 0 ? -magnitude : magnitude;
}

TEST_CASE("float16: every value is expanded exactly, at any address") {
  constexpr size_t kValues = 65536;
  for (const size_t shift : {0, 1}) {
    std::vector<char> memory(2 * kValues + 1);
    for (size_t i = 0; i < kValues; ++i) {
      const auto half = static_cast<uint16_t>(i);
      std::memcpy(memory.data() + shift + 2 * i, &half, sizeof half);
    }
    std::vector<float> out(kValues);
    FromFloat16(memory.data() + shift, out.data(), out.size());
    size_t wrong = 0;
    for (size_t i = 0; i < kValues; ++i) {
      const auto half = static_cast<uint16_t>(i);
      const bool nan = (half & 0x7fff) > 0x7c00;
      const uint32_t expected = nan ? static_cast<uint32_t>(half & 0x8000) << 16 | 0x7f800000 |
                                          static_cast<uint32_t>(half & 1023) << 13
                                    : ToBits(Slow(half));
      wrong += ToBits(out[i]) != expected;
    }
    CHECK(wrong == 0);
  }
}

}  // namespace
}  // namespace weir
