#include <cmath>
#include <cstdint>
#include <cstring>
#include <string>
#include <vector>

#include "catch2/catch.hpp"
#include "common/base/random.h"
#include "common/codec/floats.h"

namespace weir {
namespace {

float FromBits(uint32_t bits) {
  float f;
  std::memcpy(&f, &bits, sizeof f);
  return f;
}

uint32_t ToBits(float f) {
  uint32_t bits;
  std::memcpy(&bits, &f, sizeof bits);
  return bits;
}

// The definition, by distances: the nearer of the two neighbours that enclose the value; if both are as near,
// the even one. The neighbour above the largest finite value counts as 2^128, and stands for infinity.
uint16_t Slow(float value) {
  const uint32_t bits = ToBits(value);
  const uint16_t below = static_cast<uint16_t>(bits >> 16);  // towards zero
  if (std::isnan(value)) return below | 0x0040;
  if (std::isinf(value)) return below;
  auto magnitude = [](uint16_t half) {
    const uint32_t wide = static_cast<uint32_t>(half & 0x7fff) << 16;
    return wide == 0x7f800000 ? std::ldexp(1.0, 128) : static_cast<double>(FromBits(wide));
  };
  const uint16_t above = below + 1;
  const double x = std::fabs(static_cast<double>(value));
  const double down = x - magnitude(below), up = magnitude(above) - x;
  if (down != up) return down < up ? below : above;
  return below % 2 == 0 ? below : above;
}

// Values that begin `shift` bytes behind an aligned address, between guards.
class Halves {
 public:
  explicit Halves(size_t n, size_t shift = 0)
      : at_(kGuard + shift), end_(at_ + 2 * n), bytes_(end_ + kGuard, kFill) {}
  void* data() { return bytes_.data() + at_; }
  uint16_t operator[](size_t i) const {
    uint16_t half;
    std::memcpy(&half, bytes_.data() + at_ + 2 * i, 2);
    return half;
  }
  void Set(size_t i, uint16_t half) { std::memcpy(bytes_.data() + at_ + 2 * i, &half, 2); }
  bool GuardsIntact() const {
    return bytes_.substr(0, at_) == std::string(at_, kFill) &&
           bytes_.substr(end_) == std::string(kGuard, kFill);
  }

 private:
  static constexpr size_t kGuard = 64;
  static constexpr char kFill = '\x5a';
  size_t at_, end_;
  std::string bytes_;
};

TEST_CASE("bfloat16: all upper halves, beside and on their ties, as the slow reference rounds them") {
  std::vector<float> values;
  for (uint32_t upper = 0; upper < 65536; ++upper) {
    for (uint32_t lower : {0x0000, 0x0001, 0x7fff, 0x8000, 0x8001, 0xffff}) {
      values.push_back(FromBits(upper << 16 | lower));
    }
  }
  for (const Bfloat16Level& level : AvailableBfloat16Levels()) {
    Halves halves(values.size());
    level.to(values.data(), halves.data(), values.size());
    size_t wrong = 0, first_wrong = 0;
    for (size_t i = 0; i < values.size(); ++i) {
      if (halves[i] == Slow(values[i])) continue;
      if (wrong++ == 0) first_wrong = i;
    }
    CAPTURE(level.name, ToBits(values[first_wrong]), halves[first_wrong]);
    CHECK(wrong == 0);
  }
}

TEST_CASE("bfloat16: rounding, by hand") {
  struct {
    uint32_t in;
    uint16_t out;
  } const cases[] = {
      {0x00000000, 0x0000}, {0x80000000, 0x8000},
      {0x3f808000, 0x3f80},  // a tie, down to even
      {0x3f818000, 0x3f82},  // a tie, up to even
      {0x3f808001, 0x3f81}, {0x3fffffff, 0x4000},
      {0x00000001, 0x0000},  // subnormals: to zero
      {0x00008001, 0x0001},  // kept
      {0x7f7f7fff, 0x7f7f},  // the largest finite value
      {0x7f7f8000, 0x7f80},  // beyond the largest
      {0x7f800000, 0x7f80}, {0xff800000, 0xff80},
      {0x7f800001, 0x7fc0},  // a signalling NaN whose upper half looks like infinity
      {0xffffffff, 0xffff},  // a NaN that rounding would carry over the sign
  };
  for (const auto& c : cases) {
    Halves half(1);
    const float in = FromBits(c.in);
    ToBfloat16(&in, half.data(), 1);
    CAPTURE(c.in);
    CHECK(half[0] == c.out);
  }
}

TEST_CASE("bfloat16: expansion is exact, and there and back changes nothing but signalling NaNs") {
  Halves all(65536, 1);
  for (uint32_t half = 0; half < 65536; ++half) all.Set(half, static_cast<uint16_t>(half));
  for (const Bfloat16Level& level : AvailableBfloat16Levels()) {
    CAPTURE(level.name);
    std::vector<float> wide(65536);
    level.from(all.data(), wide.data(), wide.size());
    size_t wrong = 0;
    for (uint32_t half = 0; half < 65536; ++half) wrong += ToBits(wide[half]) != half << 16;
    CHECK(wrong == 0);
    Halves back(65536);
    level.to(wide.data(), back.data(), wide.size());
    for (uint32_t half = 0; half < 65536; ++half) {
      const bool nan = (half & 0x7fff) > 0x7f80;
      wrong += back[half] != (nan ? half | 0x0040 : half);
    }
    CHECK(wrong == 0);
  }
}

TEST_CASE("bfloat16: any length at any address, and nothing beyond it") {
  for (const Bfloat16Level& level : AvailableBfloat16Levels()) {
    for (size_t n : {0, 1, 2, 7, 15, 16, 17, 31, 32, 33, 63, 64, 65, 1000, 4097}) {
      for (size_t shift : {0, 1, 2, 3, 7}) {
        RandomStream random(RandomKey(5, "bfloat16"), n);
        std::vector<float> values(n);
        for (float& x : values) x = FromBits(static_cast<uint32_t>(random.Next()));
        Halves halves(n, shift);
        level.to(values.data(), halves.data(), n);
        size_t wrong = 0;
        for (size_t i = 0; i < n; ++i) wrong += halves[i] != Slow(values[i]);

        std::vector<float> wide(n + shift + 64, -1.5f);
        level.from(halves.data(), wide.data() + shift, n);
        for (size_t i = 0; i < n; ++i) {
          wrong += ToBits(wide[shift + i]) != static_cast<uint32_t>(halves[i]) << 16;
        }
        for (size_t i = 0; i < wide.size(); ++i) wrong += (i < shift || i >= shift + n) && wide[i] != -1.5f;
        CAPTURE(level.name, n, shift);
        CHECK(wrong == 0);
        CHECK(halves.GuardsIntact());
      }
    }
  }
}

TEST_CASE("bfloat16: the widest level is the one in use") {
  const Bfloat16Level widest = AvailableBfloat16Levels().back();
  CHECK(AvailableBfloat16Levels().front().name == std::string("plain"));
  const std::vector<float> values = {1.0f, -2.7182817f, 1e-37f, 3e38f, 0.1f};
  Halves a(values.size()), b(values.size());
  ToBfloat16(values.data(), a.data(), values.size());
  widest.to(values.data(), b.data(), values.size());
  std::vector<float> back(values.size());
  FromBfloat16(a.data(), back.data(), back.size());
  for (size_t i = 0; i < values.size(); ++i) {
    CHECK(a[i] == b[i]);
    CHECK(back[i] == Approx(values[i]).epsilon(1.0 / 256));
  }
}

}  // namespace
}  // namespace weir
