#include "common/codec/topk_codec.h"

#include <algorithm>
#include <cmath>
#include <cstring>
#include <limits>
#include <numeric>
#include <string>
#include <vector>

#include "catch2/catch.hpp"
#include "common/base/random.h"
#include "common/codec/block_codec.h"
#include "common/codec/value_codec.h"

namespace weir {
namespace {

constexpr float kInfinity = std::numeric_limits<float>::infinity();
constexpr uint32_t kKept[] = {1, 4, 41, 128, 129, 513, 2048};

// In (-scale, scale), some of them zeros; the magnitudes have `levels` values, or any if that is 0.
std::vector<float> Values(size_t n, float scale, uint64_t seed, int levels = 0) {
  RandomStream random(RandomKey(seed, "topk"), 0);
  std::vector<float> values;
  for (size_t i = 0; i < n; ++i) {
    float value = 2 * UniformFloat(random.Next()) - 1;
    if (levels > 0) value = std::ceil(value * static_cast<float>(levels)) / static_cast<float>(levels);
    values.push_back(i % 17 == 3 ? -0.0f : value * scale);
  }
  return values;
}

// The definition in the header: sorts.
std::string Slow(uint32_t kept, const std::vector<float>& values) {
  std::string out;
  for (size_t begin = 0; begin < values.size(); begin += kTopKBlockValues) {
    const size_t n = std::min(kTopKBlockValues, values.size() - begin), k = KeptOf(kept, n);
    const float* const in = values.data() + begin;
    std::vector<uint16_t> positions(n);
    std::iota(positions.begin(), positions.end(), 0);
    std::stable_sort(positions.begin(), positions.end(),
                     [in](size_t a, size_t b) { return std::fabs(in[a]) > std::fabs(in[b]); });
    positions.resize(k);
    std::sort(positions.begin(), positions.end());
    std::vector<uint16_t> halves(k);
    for (size_t j = 0; j < k; ++j) ToBfloat16(&in[positions[j]], &halves[j], 1);
    out.append(reinterpret_cast<const char*>(positions.data()), 2 * k);
    out.append(reinterpret_cast<const char*>(halves.data()), 2 * k);
  }
  return out;
}

// The same for reading: one entry after the other.
std::vector<float> SlowRead(uint32_t kept, const std::string& bytes, size_t n) {
  std::vector<float> out(n);
  size_t at = 0;
  for (size_t begin = 0; begin < n; begin += kTopKBlockValues) {
    const size_t length = std::min(kTopKBlockValues, n - begin), k = KeptOf(kept, length);
    bool bad = false;
    for (size_t j = 0, least = 0; j < k; ++j) {
      uint16_t position, half;
      std::memcpy(&position, &bytes[at + 2 * j], 2);
      std::memcpy(&half, &bytes[at + 2 * (k + j)], 2);
      float value;
      FromBfloat16(&half, &value, 1);
      bad = bad || position < least || position >= length || !(std::fabs(value) <= kMostBlockValue);
      if (!bad) out[begin + position] = value;
      least = size_t{position} + 1;
    }
    if (bad) std::fill_n(&out[begin], length, std::nanf(""));
    at += k * kBytesOfKept;
  }
  return out;
}

bool SameBits(const std::vector<float>& a, const std::vector<float>& b, size_t n) {
  return std::memcmp(a.data(), b.data(), n * sizeof(float)) == 0;
}

TEST_CASE("top-k: every level sends the largest values, and what is left makes up the sum") {
  for (const TopKLevel& level : AvailableTopKLevels()) {
    for (const uint32_t kept : kKept) {
      for (const size_t n : {1, 2, 5, 15, 17, 100, 1000, 4095, 4096, 4097, 9000}) {
        // With few levels there are ties; of one level all values are.
        for (const auto& [scale, levels] :
             {std::pair(1.0f, 0), {1.0f, 1}, {1.0f, 7}, {1e-40f, 0}, {0.0f, 0}, {0x1p119f, 100}}) {
          INFO(level.name << ", " << kept << " kept, " << n << " values up to " << scale << ", " << levels
                          << " levels");
          const std::vector<float> values = Values(n, scale, n, levels);
          const size_t bytes = TopKBytes(kept, n);
          std::string out(1 + bytes + 1, '\x55');  // at an odd address, before a guard
          REQUIRE(level.encode(kept, values.data(), &out[1], n) == n);
          REQUIRE(out.substr(1, bytes) == Slow(kept, values));
          CHECK(out.back() == '\x55');
          std::vector<float> read(n + 1, 7);
          level.decode(kept, &out[1], read.data(), n);
          CHECK(read[n] == 7);
          CHECK(SameBits(read, SlowRead(kept, out.substr(1), n), n));

          const std::vector<float> carried = Values(n, scale / 4, n + 1, levels);
          std::vector<float> left(carried), sums(n);
          std::string with(bytes, '\0'), of_sums(bytes, '\0');
          for (size_t i = 0; i < n; ++i) sums[i] = values[i] + carried[i];
          const size_t done =
              level.encode_with_feedback(kept, values.data(), left.data(), with.data(), left.data(), n);
          REQUIRE(level.encode(kept, sums.data(), of_sums.data(), n) == done);
          if (done < n) continue;
          CHECK(with == of_sums);
          level.decode(kept, with.data(), read.data(), n);
          size_t wrong = 0;
          for (size_t i = 0; i < n; ++i) wrong += left[i] != sums[i] - read[i] ? 1 : 0;
          CHECK(wrong == 0);
        }
      }
    }
  }
}

TEST_CASE("top-k: the bytes follow from the number of values, and say it up to a block") {
  CHECK(TopKBytes(41, 4096) == 164);     // 1 %: 100 times fewer than float32
  CHECK(TopKBytes(4, 4 * 4096) == 64);   // 0.1 %: 1,024 times
  CHECK(TopKBytes(2048, 4096) == 8192);  // 50 %: half
  for (const uint32_t kept : kKept) {
    const WireType type(v1::TOPK, kept);
    for (uint64_t n = 0; n <= 2 * kTopKBlockValues; ++n) {
      const uint64_t bytes = EncodedBytes(type, n), most = MostValues(type, bytes);
      if (n > 0)
        REQUIRE(KeptOf(kept, n % kTopKBlockValues == 0 ? kTopKBlockValues : n % kTopKBlockValues) <= n);
      REQUIRE(most >= n);
      REQUIRE(EncodedBytes(type, most) == bytes);
      REQUIRE(EncodedBytes(type, most + 1) > bytes);
    }
  }
}

TEST_CASE("top-k: a value that no block can carry is refused, wherever it is") {
  for (const TopKLevel& level : AvailableTopKLevels()) {
    for (const uint32_t kept : {1u, 41u, 300u, 2048u}) {
      for (const float bad : {kInfinity, -kInfinity, std::nanf(""), 0x1.000002p119f, -0x1p127f}) {
        for (const size_t at : {0, 4095, 4096, 8191, 8192, 9000}) {
          std::vector<float> values = Values(9001, 1, 1), left(9001);
          values[at] = bad;
          std::string out(TopKBytes(kept, 9001), '\0');
          REQUIRE(level.encode(kept, values.data(), out.data(), 9001) == at / 4096 * 4096);
          REQUIRE(level.encode_with_feedback(kept, values.data(), nullptr, out.data(), left.data(), 9001) ==
                  at / 4096 * 4096);
        }
      }
    }
  }
}

TEST_CASE("top-k: whatever the bytes, every level reads the same") {
  constexpr size_t kN = 3 * 4096 + 77;
  RandomStream random(RandomKey(5, "bytes"), 0);
  for (int round = 0; round < 300; ++round) {
    const uint32_t kept = kKept[random.NextBelow(std::size(kKept))];
    std::string bytes = Slow(kept, Values(kN, 1, static_cast<uint64_t>(round)));
    for (uint64_t changes = random.NextBelow(4); changes > 0; --changes) {
      bytes[random.NextBelow(bytes.size())] = static_cast<char>(random.Next());
    }
    if (round % 10 == 0) {
      for (char& byte : bytes) byte = static_cast<char>(random.Next());
    }
    const std::vector<float> expected = SlowRead(kept, bytes, kN);
    for (const TopKLevel& level : AvailableTopKLevels()) {
      INFO("round " << round << ", " << level.name);
      std::vector<float> read(kN);
      level.decode(kept, bytes.data(), read.data(), kN);
      REQUIRE(SameBits(read, expected, kN));
    }
  }
}

TEST_CASE("top-k: bytes that nobody writes make NaNs of their block alone") {
  constexpr size_t kN = 4096 + 1000;
  for (const TopKLevel& level : AvailableTopKLevels()) {
    for (const uint32_t kept : {4u, 41u, 2048u}) {
      const std::vector<float> values = Values(kN, 1, 3);
      std::string good(TopKBytes(kept, kN), '\0');
      level.encode(kept, values.data(), good.data(), kN);
      const size_t first = TopKBytes(kept, 4096), k = KeptOf(kept, 1000);
      // Writes 16 bits, and returns which blocks are finite.
      const auto finite = [&](size_t at, uint16_t bits) {
        std::string bytes = good;
        std::memcpy(&bytes[at], &bits, sizeof bits);
        std::vector<float> read(kN + 1, 7);
        level.decode(kept, bytes.data(), read.data(), kN);
        CHECK(read[kN] == 7);
        const auto of = [&](size_t begin, size_t end) {
          size_t count = 0;
          for (size_t i = begin; i < end; ++i) count += std::isfinite(read[i]) ? 1 : 0;
          REQUIRE((count == 0 || count == end - begin));
          return count > 0;
        };
        return std::pair(of(0, 4096), of(4096, kN));
      };
      const std::pair both(true, true), second(true, false), whole(false, true);
      CHECK(finite(2 * (kept - 1), 4095) == both);
      CHECK(finite(2 * (kept - 1), 4096) == whole);
      CHECK(finite(2 * (kept - 1), 65535) == whole);
      CHECK(finite(2 * (kept - 1), 0) == whole);  // does not rise
      uint16_t before;
      std::memcpy(&before, &good[0], sizeof before);
      CHECK(finite(2, before) == whole);  // the same twice
      CHECK(finite(first + 2 * (k - 1), 999) == both);
      CHECK(finite(first + 2 * (k - 1), 1000) == second);  // beyond the short block
      for (const uint16_t bad : {0x7f80, 0xff80, 0x7fc0, 0x7b01, 0xfb01}) {
        CHECK(finite(2 * kept, bad) == whole);
        CHECK(finite(first + 4 * k - 2, bad) == second);
      }
      for (const uint16_t fits : {0x7b00, 0xfb00, 0x8000, 0x0001}) CHECK(finite(4 * kept - 2, fits) == both);
    }
  }
}

}  // namespace
}  // namespace weir
