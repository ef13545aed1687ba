#include "common/codec/floats.h"

#include <cfloat>
#include <cmath>
#include <cstdint>
#include <cstring>
#include <limits>
#include <string>
#include <vector>

#include "catch2/catch.hpp"
#include "common/base/random.h"

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

// The definition of float16, without NaN.
float SlowFloat16(uint16_t half) {
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
                                    : ToBits(SlowFloat16(half));
      wrong += ToBits(out[i]) != expected;
    }
    CHECK(wrong == 0);
  }
}

const float kBad[] = {NAN, -NAN, INFINITY, -INFINITY};

// The largest finite values, whose bits are next to infinity's, and small ones.
std::vector<float> Finite(int64_t n, float largest) {
  std::vector<float> values(static_cast<size_t>(n), 0.5f);
  for (size_t i = 0; i < values.size(); i += 3) values[i] = i % 2 == 0 ? largest : -largest;
  return values;
}

int64_t FirstInUnaligned(const std::vector<float>& values, int64_t n, size_t shift) {
  std::vector<char> bytes(shift + values.size() * sizeof(float));
  std::memcpy(bytes.data() + shift, values.data(), values.size() * sizeof(float));
  return FirstNonFiniteAt(bytes.data() + shift, n);
}

TEST_CASE("FirstNonFinite: the first among float32, wherever it is and at any address") {
  for (const int64_t n : {1, 2, 3, 15, 16, 17, 33, 64, 65, 1025, 16383, 16384, 16385, 40000}) {
    const std::vector<float> values = Finite(n, FLT_MAX);
    CAPTURE(n);
    REQUIRE(FirstNonFinite(values.data(), n) == n);
    size_t wrong = 0;
    for (int64_t at = 0; at<n; at += n> 100 ? n / 29 : 1) {
      for (const float x : kBad) {
        std::vector<float> with = values;
        with[static_cast<size_t>(n) - 1] = x;
        with[static_cast<size_t>(at)] = x;
        wrong += FirstNonFinite(with.data(), n) != at;
        for (const size_t shift : {1, 2, 4}) wrong += FirstInUnaligned(with, n, shift) != at;
        // Values behind the end do not count.
        wrong += FirstNonFinite(with.data(), at) != at;
      }
    }
    CHECK(wrong == 0);
  }
  CHECK(FirstNonFinite(static_cast<const float*>(nullptr), 0) == 0);
}

TEST_CASE("FirstNonFinite: the first among bfloat16") {
  for (const int64_t n : {1, 31, 32, 33, 20000}) {
    std::vector<float> values = Finite(n, 1e38f);
    std::vector<uint16_t> small(values.size());
    ToBfloat16(values.data(), small.data(), values.size());
    CAPTURE(n);
    CHECK(FirstNonFinite(small.data(), n) == n);
    for (const float x : kBad) {
      values[static_cast<size_t>(n / 2)] = x;
      ToBfloat16(values.data(), small.data(), values.size());
      CHECK(FirstNonFinite(small.data(), n) == n / 2);
    }
  }
}

TEST_CASE("FirstNonFiniteBfloat16: what bfloat16 rounds to infinity counts as infinite") {
  for (const float x : {NAN, -INFINITY, FLT_MAX, -FLT_MAX}) {
    const std::vector<float> values = {1, 3.3e38f, x, 1};
    CAPTURE(x);
    CHECK(FirstNonFiniteBfloat16(values.data(), 4) == 2);
  }
}

}  // namespace
}  // namespace weir
