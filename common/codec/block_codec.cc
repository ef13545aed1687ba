#include "common/codec/block_codec.h"

#include <algorithm>
#include <cstring>

#include "common/base/cpu_levels.h"
#include "common/codec/float_bits.h"

namespace weir {
namespace {

constexpr uint32_t kLeastBits = 0x0d800000;  // 2^-100
// A float32 from -2^22 to 2^22, added to this, is rounded to nearest, ties to even, in the lowest bits.
constexpr float kRounds = 0x1.8p23f;
constexpr int32_t kRoundsBits = 0x4b400000;
constexpr size_t kLanes = 16;

WEIR_INLINE void Round(const float* in, float factor, int8_t* out, size_t n) {
  for (size_t i = 0; i < n; ++i) {
    out[i] = static_cast<int8_t>(SignedBitsOf(in[i] * factor + kRounds) - kRoundsBits);
  }
}

WEIR_INLINE float MeanMagnitude(const float* in, size_t n) {
  float lanes[kLanes] = {};
  size_t i = 0;
  for (; i + kLanes <= n; i += kLanes) {
    for (size_t l = 0; l < kLanes; ++l) lanes[l] += __builtin_fabsf(in[i + l]);
  }
  for (size_t l = 0; i + l < n; ++l) lanes[l] += __builtin_fabsf(in[i + l]);
  for (size_t step = kLanes / 2; step > 0; step /= 2) {
    for (size_t l = 0; l < step; ++l) lanes[l] += lanes[l + step];
  }
  return lanes[0] / static_cast<float>(n);
}

template <BlockCode kCode>
WEIR_INLINE bool EncodeBlock(const float* in, char* out, size_t n) {
  const uint32_t largest = LargestBits(in, n);
  if (largest > kMostBits) return false;
  const float max = largest < kLeastBits ? 0 : FloatOf(largest);
  if constexpr (kCode == BlockCode::kInt8) {
    const float scale = max / 127;
    std::memcpy(out, &scale, sizeof scale);
    Round(in, max == 0 ? 0 : 127 / max, reinterpret_cast<int8_t*>(out + sizeof scale), n);
    return true;
  }
  const uint16_t half = ToHalf(kCode == BlockCode::kInt4 ? max / 7 : max == 0 ? 0 : MeanMagnitude(in, n));
  std::memcpy(out, &half, sizeof half);
  auto* const to = reinterpret_cast<uint8_t*>(out + sizeof half);
  if constexpr (kCode == BlockCode::kInt4) {
    int8_t codes[kBlockValues];
    const float scale = FloatOf(uint32_t{half} << 16);
    Round(in, scale == 0 ? 0 : 1 / scale, codes, n);
    const size_t bytes = (n + 1) / 2;
    if (n % 2 != 0) codes[n] = 0;
    for (size_t j = 0; j < bytes; ++j) {
      to[j] = static_cast<uint8_t>((codes[j] & 15) | codes[j + bytes] << 4);
    }
  } else {
    const size_t bytes = (n + 7) / 8;
    for (size_t j = 0; j < bytes; ++j) to[j] = 0;
    for (size_t b = 0; b < 8; ++b) {
      const float* const from = in + b * bytes;
      const size_t end = b * bytes + bytes <= n ? bytes : b * bytes < n ? n - b * bytes : 0;
      for (size_t j = 0; j < end; ++j) to[j] |= static_cast<uint8_t>((from[j] < 0 ? 1 : 0) << b);
    }
  }
  return true;
}

template <BlockCode kCode>
WEIR_INLINE void DecodeBlock(const char* in, float* out, size_t n) {
  uint32_t bits;
  if constexpr (kCode == BlockCode::kInt8) {
    std::memcpy(&bits, in, sizeof bits);
  } else {
    uint16_t half;
    std::memcpy(&half, in, sizeof half);
    bits = uint32_t{half} << 16;
  }
  // The compiler must not read the scale again after the check.
  __asm__("" : "+r"(bits));
  // A negative scale has the highest bit.
  const float scale = bits > kMostBits ? kNaN : FloatOf(bits);
  const auto* const from = reinterpret_cast<const uint8_t*>(in + ScaleBytes(kCode));
  if constexpr (kCode == BlockCode::kInt8) {
    for (size_t i = 0; i < n; ++i) out[i] = static_cast<float>(static_cast<int8_t>(from[i])) * scale;
  } else if constexpr (kCode == BlockCode::kInt4) {
    const size_t bytes = (n + 1) / 2;
    for (size_t j = 0; j < bytes; ++j) out[j] = static_cast<float>(((from[j] & 15) ^ 8) - 8) * scale;
    for (size_t j = 0; j < n - bytes; ++j) {
      out[bytes + j] = static_cast<float>(((from[j] >> 4) ^ 8) - 8) * scale;
    }
  } else {
    const size_t bytes = (n + 7) / 8;
    const uint32_t scale_bits = BitsOf(scale);
    for (size_t b = 0; b < 8; ++b) {
      float* const to = out + b * bytes;
      const size_t end = b * bytes + bytes <= n ? bytes : b * bytes < n ? n - b * bytes : 0;
      for (size_t j = 0; j < end; ++j) to[j] = FloatOf(scale_bits | uint32_t{from[j]} >> b << 31);
    }
  }
}

// Calls each(i, block, length) for the blocks of n values, which begin at value i and at the byte `block`.
// Returns n, or where `each` returned false. A whole block's length is a constant for the compiler.
template <BlockCode kCode, typename Bytes, typename Each>
WEIR_INLINE size_t ForBlocks(Bytes bytes, size_t n, const Each& each) {
  constexpr size_t kBytes = BlockBytes(kCode, kBlockValues);
  size_t i = 0;
  for (; i + kBlockValues <= n; i += kBlockValues, bytes += kBytes) {
    if (!each(i, bytes, kBlockValues)) return i;
  }
  return i == n || each(i, bytes, n - i) ? n : i;
}

template <BlockCode kCode>
WEIR_INLINE size_t EncodeAll(const float* in, void* out, size_t n) {
  return ForBlocks<kCode>(static_cast<char*>(out), n,
                          [in](size_t i, char* to, size_t length)
                              WEIR_INLINE_LAMBDA { return EncodeBlock<kCode>(in + i, to, length); });
}

template <BlockCode kCode>
WEIR_INLINE size_t EncodeAllWithFeedback(const float* in, const float* carried, void* out, float* left,
                                         size_t n) {
  float sums[kBlockValues], read[kBlockValues];
  return ForBlocks<kCode>(static_cast<char*>(out), n,
                          [&](size_t i, char* to, size_t length) WEIR_INLINE_LAMBDA {
                            AddCarried(in + i, carried == nullptr ? nullptr : carried + i, sums, length);
                            if (!EncodeBlock<kCode>(sums, to, length)) return false;
                            DecodeBlock<kCode>(to, read, length);
                            for (size_t k = 0; k < length; ++k) left[i + k] = sums[k] - read[k];
                            return true;
                          });
}

template <BlockCode kCode>
WEIR_INLINE void DecodeAll(const void* in, float* out, size_t n) {
  ForBlocks<kCode>(static_cast<const char*>(in), n,
                   [out](size_t i, const char* from, size_t length) WEIR_INLINE_LAMBDA {
                     DecodeBlock<kCode>(from, out + i, length);
                     return true;
                   });
}

// The three functions of a level.
#define WEIR_LEVEL(NAME, TARGET)                                                                         \
  template <BlockCode kCode>                                                                             \
  TARGET size_t Encode##NAME##Of(const float* in, void* out, size_t n) {                                 \
    return EncodeAll<kCode>(in, out, n);                                                                 \
  }                                                                                                      \
  template <BlockCode kCode>                                                                             \
  TARGET size_t Feedback##NAME##Of(const float* in, const float* carried, void* out, float* left,        \
                                   size_t n) {                                                           \
    return EncodeAllWithFeedback<kCode>(in, carried, out, left, n);                                      \
  }                                                                                                      \
  template <BlockCode kCode>                                                                             \
  TARGET void Decode##NAME##Of(const void* in, float* out, size_t n) {                                   \
    DecodeAll<kCode>(in, out, n);                                                                        \
  }                                                                                                      \
  size_t Encode##NAME(BlockCode code, const float* in, void* out, size_t n) {                            \
    return code == BlockCode::kInt8   ? Encode##NAME##Of<BlockCode::kInt8>(in, out, n)                   \
           : code == BlockCode::kInt4 ? Encode##NAME##Of<BlockCode::kInt4>(in, out, n)                   \
                                      : Encode##NAME##Of<BlockCode::kBit1>(in, out, n);                  \
  }                                                                                                      \
  size_t Feedback##NAME(BlockCode code, const float* in, const float* carried, void* out, float* left,   \
                        size_t n) {                                                                      \
    return code == BlockCode::kInt8   ? Feedback##NAME##Of<BlockCode::kInt8>(in, carried, out, left, n)  \
           : code == BlockCode::kInt4 ? Feedback##NAME##Of<BlockCode::kInt4>(in, carried, out, left, n)  \
                                      : Feedback##NAME##Of<BlockCode::kBit1>(in, carried, out, left, n); \
  }                                                                                                      \
  void Decode##NAME(BlockCode code, const void* in, float* out, size_t n) {                              \
    return code == BlockCode::kInt8   ? Decode##NAME##Of<BlockCode::kInt8>(in, out, n)                   \
           : code == BlockCode::kInt4 ? Decode##NAME##Of<BlockCode::kInt4>(in, out, n)                   \
                                      : Decode##NAME##Of<BlockCode::kBit1>(in, out, n);                  \
  }

WEIR_LEVEL(Plain, )
WEIR_LEVEL(Avx2, WEIR_AVX2)
WEIR_LEVEL(Avx512, WEIR_AVX512)

const BlockCodecLevel& Best() {
  static const BlockCodecLevel best = AvailableBlockCodecLevels().back();
  return best;
}

}  // namespace

std::vector<BlockCodecLevel> AvailableBlockCodecLevels() {
  std::vector<BlockCodecLevel> levels = {{"plain", EncodePlain, FeedbackPlain, DecodePlain}};
  if (HasAvx2()) levels.push_back({"avx2", EncodeAvx2, FeedbackAvx2, DecodeAvx2});
  if (HasAvx512()) levels.push_back({"avx512", EncodeAvx512, FeedbackAvx512, DecodeAvx512});
  return levels;
}

size_t EncodeBlocks(BlockCode code, const float* in, void* out, size_t n) {
  return Best().encode(code, in, out, n);
}
size_t EncodeBlocksWithFeedback(BlockCode code, const float* in, const float* carried, void* out, float* left,
                                size_t n) {
  return Best().encode_with_feedback(code, in, carried, out, left, n);
}
void DecodeBlocks(BlockCode code, const void* in, float* out, size_t n) { Best().decode(code, in, out, n); }

}  // namespace weir
