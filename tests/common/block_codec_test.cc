#include "common/codec/block_codec.h"

#include <algorithm>
#include <cmath>
#include <cstring>
#include <limits>
#include <string>
#include <vector>

#include "catch2/catch.hpp"
#include "common/base/random.h"
#include "common/codec/value_codec.h"

namespace weir {
namespace {

constexpr BlockCode kCodes[] = {BlockCode::kInt8, BlockCode::kInt4, BlockCode::kBit1};
constexpr float kInfinity = std::numeric_limits<float>::infinity();

// In (-scale, scale), some of them zeros of either sign.
std::vector<float> Values(size_t n, float scale, uint64_t seed) {
  RandomStream random(RandomKey(seed, "blocks"), 0);
  std::vector<float> values;
  for (size_t i = 0; i < n; ++i) {
    const float value = (2 * UniformFloat(random.Next()) - 1) * scale;
    values.push_back(i % 17 == 3 ? -0.0f : i % 17 == 5 ? 0.0f : value);
  }
  return values;
}

uint16_t HalfOf(float value) {
  uint16_t half;
  ToBfloat16(&value, &half, 1);
  return half;
}
float Widened(uint16_t half) {
  float value;
  FromBfloat16(&half, &value, 1);
  return value;
}

// The definition in the header, one value after the other.
std::string Slow(BlockCode code, const std::vector<float>& values) {
  std::string out;
  for (size_t begin = 0; begin < values.size(); begin += kBlockValues) {
    const size_t n = std::min(kBlockValues, values.size() - begin);
    const float* const in = values.data() + begin;
    float max = 0;
    for (size_t i = 0; i < n; ++i) max = std::max(max, std::fabs(in[i]));
    if (max < 0x1p-100f) max = 0;
    const auto round = [&](float factor, size_t i) {
      return max == 0 ? 0 : static_cast<int>(std::nearbyint(in[i] * factor));
    };
    if (code == BlockCode::kInt8) {
      const float scale = max / 127;
      out.append(reinterpret_cast<const char*>(&scale), 4);
      for (size_t i = 0; i < n; ++i) out.push_back(static_cast<char>(round(127 / max, i)));
      continue;
    }
    float lanes[16] = {};
    for (size_t i = 0; i < n; ++i) lanes[i % 16] += std::fabs(in[i]);
    for (size_t step = 8; step > 0; step /= 2) {
      for (size_t l = 0; l < step; ++l) lanes[l] += lanes[l + step];
    }
    const float mean = max == 0 ? 0 : lanes[0] / static_cast<float>(n);
    const uint16_t half = HalfOf(code == BlockCode::kInt4 ? max / 7 : mean);
    out.append(reinterpret_cast<const char*>(&half), 2);
    const size_t in_byte = 8 / BitsPerCode(code), bytes = (n + in_byte - 1) / in_byte;
    std::string codes(bytes, '\0');
    for (size_t i = 0; i < n; ++i) {
      const int bits = code == BlockCode::kBit1 ? in[i] < 0 : round(1 / Widened(half), i) & 15;
      codes[i % bytes] = static_cast<char>(codes[i % bytes] | bits << (i / bytes * BitsPerCode(code)));
    }
    out += codes;
  }
  return out;
}

TEST_CASE("every level encodes as defined, and reads the same values") {
  for (const BlockCodecLevel& level : AvailableBlockCodecLevels()) {
    for (const BlockCode code : kCodes) {
      for (const size_t n : {1, 2, 7, 8, 9, 15, 16, 17, 31, 255, 256, 257, 511, 512, 1000}) {
        for (const float scale : {1.0f, 0.0f, 1e-40f, 0x1p-100f, 1e-20f, 0x1p119f}) {
          INFO(level.name << ", code " << static_cast<int>(code) << ", " << n << " values up to " << scale);
          const std::vector<float> values = Values(n, scale, n);
          const size_t bytes = BlockBytes(code, n);
          std::string out(1 + bytes + 1, '\x55');  // at an odd address, before a guard
          REQUIRE(level.encode(code, values.data(), &out[1], n) == n);
          CHECK(out.substr(1, bytes) == Slow(code, values));
          CHECK(out.back() == '\x55');
          std::vector<float> read(n + 1, 7), of_plain(n);
          level.decode(code, &out[1], read.data(), n);
          AvailableBlockCodecLevels()[0].decode(code, &out[1], of_plain.data(), n);
          CHECK(std::memcmp(read.data(), of_plain.data(), n * sizeof(float)) == 0);
          CHECK(read[n] == 7);

          // What was read and what is left add up to the sum of gradient and residual.
          const std::vector<float> carried = Values(n, scale / 4, n + 1);
          std::vector<float> left(n), sums(n);
          std::string with(bytes, '\0'), of_sums(bytes, '\0');
          for (size_t i = 0; i < n; ++i) sums[i] = values[i] + carried[i];
          const size_t done =
              level.encode_with_feedback(code, values.data(), carried.data(), with.data(), left.data(), n);
          REQUIRE(level.encode(code, sums.data(), of_sums.data(), n) == done);
          if (done < n) continue;
          CHECK(with == of_sums);
          level.decode(code, with.data(), read.data(), n);
          for (size_t i = 0; i < n; ++i) REQUIRE(left[i] == sums[i] - read[i]);
        }
      }
    }
  }
}

TEST_CASE("a block of equal magnitudes keeps them, and the errors of others are bounded") {
  std::vector<float> equal(256, 0.75f), read(256);
  for (size_t i = 0; i < 256; i += 3) equal[i] = -0.75f;
  std::string out(BlockBytes(BlockCode::kInt8, 256), '\0');
  EncodeBlocks(BlockCode::kBit1, equal.data(), out.data(), 256);
  DecodeBlocks(BlockCode::kBit1, out.data(), read.data(), 256);
  CHECK(read == equal);
  const std::vector<float> values = Values(256, 1, 5);
  const float max = 1;
  for (const auto& [code, levels] : {std::pair(BlockCode::kInt8, 127), std::pair(BlockCode::kInt4, 7)}) {
    EncodeBlocks(code, values.data(), out.data(), 256);
    DecodeBlocks(code, out.data(), read.data(), 256);
    for (size_t i = 0; i < 256; ++i) REQUIRE(std::fabs(read[i] - values[i]) <= 0.505f * max / levels);
  }
  CHECK(BlockBytes(BlockCode::kInt8, 256) == 260);
  CHECK(BlockBytes(BlockCode::kInt4, 256) == 130);
  CHECK(BlockBytes(BlockCode::kBit1, 256) == 34);  // 30.1 times fewer bytes than float32
}

TEST_CASE("a value that no block can carry is refused, wherever it is") {
  for (const BlockCodecLevel& level : AvailableBlockCodecLevels()) {
    for (const BlockCode code : kCodes) {
      for (const float bad : {kInfinity, -kInfinity, std::nanf(""), 0x1.000002p119f, -0x1p127f}) {
        for (const size_t at : {0, 255, 256, 511, 599}) {
          std::vector<float> values = Values(600, 1, 1), left(600);
          values[at] = bad;
          std::string out(BlockBytes(code, 600), '\0');
          CHECK(level.encode(code, values.data(), out.data(), 600) == at / 256 * 256);
          CHECK(level.encode_with_feedback(code, values.data(), nullptr, out.data(), left.data(), 600) ==
                at / 256 * 256);
          CHECK(FirstNonFinite(v1::INT8, values.data(), 600) == static_cast<int64_t>(at));
        }
      }
    }
  }
}

TEST_CASE("a scale that nobody writes makes NaNs of its block, and any other block is finite") {
  for (const BlockCodecLevel& level : AvailableBlockCodecLevels()) {
    for (const BlockCode code : kCodes) {
      for (const float scale :
           {-1.0f, -0.0f, kInfinity, -kInfinity, std::nanf(""), 0x1p120f, 0.0f, 0x1p119f}) {
        for (int codes = 0; codes < 256; ++codes) {
          std::string bytes(BlockBytes(code, 300), static_cast<char>(codes));
          const std::string as_float(reinterpret_cast<const char*>(&scale), sizeof scale);
          const std::string written = as_float.substr(4 - ScaleBytes(code));
          bytes.replace(0, written.size(), written);
          const float one = 1;
          const std::string good(reinterpret_cast<const char*>(&one), sizeof one);
          bytes.replace(BlockBytes(code, 256), ScaleBytes(code), good.substr(4 - ScaleBytes(code)));
          std::vector<float> read(300);
          level.decode(code, bytes.data(), read.data(), 300);
          const bool fits = !std::signbit(scale) && scale <= 0x1p119f;
          for (size_t i = 0; i < 300; ++i) {
            REQUIRE(std::isfinite(read[i]) == (i >= 256 || fits));
            if (!std::isfinite(read[i])) REQUIRE(std::isnan(read[i]));
          }
        }
      }
    }
  }
}

TEST_CASE("a cursor reads blocks from pieces of any length, and in runs of any length") {
  for (const WireType type :
       {WireType(v1::F32), WireType(v1::BF16), WireType(v1::INT8), WireType(v1::INT4), WireType(v1::BIT1),
        WireType(v1::TOPK, 1), WireType(v1::TOPK, 410), WireType(v1::TOPK, 2048)}) {
    const v1::Dtype dtype = type.dtype;
    const auto block = static_cast<int64_t>(BlockValuesOf(dtype)), n = 5 * block + 77;
    const std::vector<float> values = Values(static_cast<size_t>(n), 1, 9);
    std::string bytes(EncodedBytes(type, static_cast<uint64_t>(n)), '\0');
    std::vector<float> expected(values);
    if (IsQuantised(dtype)) {
      EncodeBlocks(type, values.data(), bytes.data(), values.size());
      DecodeBlocks(type, bytes.data(), expected.data(), values.size());
    } else {
      Encode(dtype, values.data(), bytes.data(), values.size());
      Decode(dtype, bytes.data(), expected.data(), values.size());
    }
    for (const size_t piece : {1, 3, 64, 259, 1000, 100000}) {
      std::vector<absl::string_view> pieces;
      for (size_t at = 0; at < bytes.size(); at += piece) {
        pieces.push_back(absl::string_view(bytes).substr(at, piece));
        pieces.push_back("");
      }
      for (const int64_t run : {1, 100, 256, 300, 4096, 5000}) {
        ValueCursor cursor(pieces, type, n);
        std::vector<float> read;
        std::vector<float> converted(ValueCursor::kStretch);
        while (static_cast<int64_t>(read.size()) < n) {
          const int64_t left = n - static_cast<int64_t>(read.size());
          // Runs end as a model's tensors do.
          const int64_t wanted = std::min(left, run - static_cast<int64_t>(read.size()) % run);
          int64_t got = 0;
          const void* const from = cursor.Take(wanted, converted.data(), &got);
          REQUIRE((got >= 1 && got <= wanted));
          const size_t had = read.size();
          read.resize(had + static_cast<size_t>(got));
          std::memcpy(read.data() + had, from, static_cast<size_t>(got) * sizeof(float));
        }
        REQUIRE(read == expected);
        ValueCursor later(pieces, type, n);
        later.Skip(2 * block);
        std::vector<float> rest(static_cast<size_t>(n - 2 * block));
        later.Read(rest.data(), n - 2 * block);
        REQUIRE(std::equal(rest.begin(), rest.end(), expected.begin() + 2 * block));
      }
    }
  }
}

}  // namespace
}  // namespace weir
