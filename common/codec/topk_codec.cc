#include "common/codec/topk_codec.h"

#include <algorithm>
#include <cstring>

#include "common/base/cpu_levels.h"
#include "common/codec/float_bits.h"

namespace weir {
namespace {

WEIR_INLINE int32_t MagnitudeOf(float value) { return SignedBitsOf(value) & 0x7fffffff; }

// A bound that at least k of n >= k magnitudes reach, found bit by bit: the k-th largest of them, or a lower
// one that no other magnitude reaches.
WEIR_INLINE int32_t BoundOf(const int32_t* magnitudes, size_t n, size_t k) {
  int32_t bound = 0;
  for (int32_t bit = 1 << 30; bit > 0; bit >>= 1) {
    const int32_t next = bound | bit;
    int32_t reach = 0;
    for (size_t i = 0; i < n; ++i) reach += magnitudes[i] >= next ? 1 : 0;
    if (static_cast<size_t>(reach) >= k) bound = next;
    if (static_cast<size_t>(reach) == k) break;
  }
  return bound;
}

// Room for the work on one block.
struct Scratch {
  int32_t largest[kTopKBlockValues];     // of each group
  int32_t magnitudes[kTopKBlockValues];  // of candidates
  uint16_t positions[kTopKBlockValues];  // of candidates, then of what is chosen
};

// Writes to scratch.positions where the k largest magnitudes of n values are, rising. The values lie in at
// least k groups of kGroup, the last of which may be short. k groups have a value that reaches the k-th
// largest of the groups' largest, so what is below it cannot be chosen. Returns false if a value cannot
// travel.
template <size_t kGroup>
WEIR_INLINE bool Choose(const float* in, size_t n, size_t k, Scratch& scratch) {
  const size_t whole = n / kGroup, groups = (n + kGroup - 1) / kGroup;
  for (size_t g = 0; g < whole; ++g) {
    int32_t largest = 0;
    for (size_t i = 0; i < kGroup; ++i) largest = std::max(largest, MagnitudeOf(in[g * kGroup + i]));
    scratch.largest[g] = largest;
  }
  if (whole < groups) {
    scratch.largest[whole] = static_cast<int32_t>(LargestBits(in + whole * kGroup, n % kGroup));
  }
  int32_t most = 0;
  for (size_t g = 0; g < groups; ++g) most = std::max(most, scratch.largest[g]);
  if (most > static_cast<int32_t>(kMostBits)) return false;

  const int32_t bound = BoundOf(scratch.largest, groups, k);
  size_t candidates = 0;
  for (size_t g = 0; g < groups; ++g) {
    if (kGroup > 1 && scratch.largest[g] < bound) continue;
    const size_t end = std::min(n, (g + 1) * kGroup);
    for (size_t i = g * kGroup; i < end; ++i) {
      const int32_t magnitude = MagnitudeOf(in[i]);
      scratch.magnitudes[candidates] = magnitude;
      scratch.positions[candidates] = static_cast<uint16_t>(i);
      candidates += magnitude >= bound ? 1 : 0;
    }
  }
  if (candidates == k) return true;

  const int32_t least = kGroup == 1 ? bound : BoundOf(scratch.magnitudes, candidates, k);
  size_t above = 0;
  for (size_t c = 0; c < candidates; ++c) above += scratch.magnitudes[c] > least ? 1 : 0;
  size_t chosen = 0;
  for (size_t c = 0, equal = k - above; chosen < k; ++c) {
    const bool ties = scratch.magnitudes[c] == least && equal > 0;
    scratch.positions[chosen] = scratch.positions[c];
    chosen += scratch.magnitudes[c] > least || ties ? 1 : 0;
    equal -= ties ? 1 : 0;
  }
  return true;
}

WEIR_INLINE bool EncodeBlock(const float* in, char* out, size_t n, size_t k, Scratch& scratch) {
  const bool fits = k * 32 <= n  ? Choose<16>(in, n, k, scratch)
                    : k * 8 <= n ? Choose<4>(in, n, k, scratch)
                                 : Choose<1>(in, n, k, scratch);
  if (!fits) return false;
  uint16_t values[kMostKept];
  for (size_t j = 0; j < k; ++j) values[j] = ToHalf(in[scratch.positions[j]]);
  std::memcpy(out, scratch.positions, k * sizeof(uint16_t));
  std::memcpy(out + k * sizeof(uint16_t), values, k * sizeof(uint16_t));
  return true;
}

WEIR_INLINE void DecodeBlock(const char* in, float* out, size_t n, size_t k) {
  uint16_t positions[kMostKept], values[kMostKept];
  std::memcpy(positions, in, k * sizeof(uint16_t));
  std::memcpy(values, in + k * sizeof(uint16_t), k * sizeof(uint16_t));
  // The compiler must not read the bytes again after the check.
  __asm__ volatile("" : : "r"(positions), "r"(values) : "memory");
  bool bad = positions[k - 1] >= n;
  for (size_t j = 1; j < k; ++j) bad |= positions[j] <= positions[j - 1];
  for (size_t j = 0; j < k; ++j) bad |= (values[j] & 0x7fff) > (kMostBits >> 16);
  if (bad) {
    for (size_t i = 0; i < n; ++i) out[i] = kNaN;
    return;
  }
  std::memset(out, 0, n * sizeof(float));
  for (size_t j = 0; j < k; ++j) out[positions[j]] = FloatOf(uint32_t{values[j]} << 16);
}

// Calls each(i, block, length, k) for the blocks of n values, which begin at value i and at the byte `block`.
// Returns n, or where `each` returned false.
template <typename Bytes, typename Each>
WEIR_INLINE size_t ForBlocks(uint32_t kept, Bytes bytes, size_t n, const Each& each) {
  for (size_t i = 0; i < n; i += kTopKBlockValues) {
    const size_t length = std::min(kTopKBlockValues, n - i), k = KeptOf(kept, length);
    if (!each(i, bytes, length, k)) return i;
    bytes += k * kBytesOfKept;
  }
  return n;
}

WEIR_INLINE size_t EncodeAll(uint32_t kept, const float* in, void* out, size_t n) {
  Scratch scratch;
  return ForBlocks(kept, static_cast<char*>(out), n,
                   [&](size_t i, char* to, size_t length, size_t k)
                       WEIR_INLINE_LAMBDA { return EncodeBlock(in + i, to, length, k, scratch); });
}

WEIR_INLINE size_t EncodeAllWithFeedback(uint32_t kept, const float* in, const float* carried, void* out,
                                         float* left, size_t n) {
  Scratch scratch;
  float sums[kTopKBlockValues];
  return ForBlocks(kept, static_cast<char*>(out), n,
                   [&](size_t i, char* to, size_t length, size_t k) WEIR_INLINE_LAMBDA {
                     AddCarried(in + i, carried == nullptr ? nullptr : carried + i, sums, length);
                     if (!EncodeBlock(sums, to, length, k, scratch)) return false;
                     std::memcpy(left + i, sums, length * sizeof(float));
                     for (size_t j = 0; j < k; ++j) {
                       const size_t at = scratch.positions[j];
                       left[i + at] = sums[at] - FloatOf(uint32_t{ToHalf(sums[at])} << 16);
                     }
                     return true;
                   });
}

WEIR_INLINE void DecodeAll(uint32_t kept, const void* in, float* out, size_t n) {
  ForBlocks(kept, static_cast<const char*>(in), n,
            [&](size_t i, const char* from, size_t length, size_t k) WEIR_INLINE_LAMBDA {
              DecodeBlock(from, out + i, length, k);
              return true;
            });
}

// The three functions of a level.
#define WEIR_LEVEL(NAME, TARGET)                                                                             \
  TARGET size_t Encode##NAME(uint32_t kept, const float* in, void* out, size_t n) {                          \
    return EncodeAll(kept, in, out, n);                                                                      \
  }                                                                                                          \
  TARGET size_t Feedback##NAME(uint32_t kept, const float* in, const float* carried, void* out, float* left, \
                               size_t n) {                                                                   \
    return EncodeAllWithFeedback(kept, in, carried, out, left, n);                                           \
  }                                                                                                          \
  TARGET void Decode##NAME(uint32_t kept, const void* in, float* out, size_t n) {                            \
    DecodeAll(kept, in, out, n);                                                                             \
  }

WEIR_LEVEL(Plain, )
WEIR_LEVEL(Avx2, WEIR_AVX2)
WEIR_LEVEL(Avx512, WEIR_AVX512)

const TopKLevel& Best() {
  static const TopKLevel best = AvailableTopKLevels().back();
  return best;
}

}  // namespace

std::vector<TopKLevel> AvailableTopKLevels() {
  std::vector<TopKLevel> levels = {{"plain", EncodePlain, FeedbackPlain, DecodePlain}};
  if (HasAvx2()) levels.push_back({"avx2", EncodeAvx2, FeedbackAvx2, DecodeAvx2});
  if (HasAvx512()) levels.push_back({"avx512", EncodeAvx512, FeedbackAvx512, DecodeAvx512});
  return levels;
}

size_t EncodeTopK(uint32_t kept, const float* in, void* out, size_t n) {
  return Best().encode(kept, in, out, n);
}
size_t EncodeTopKWithFeedback(uint32_t kept, const float* in, const float* carried, void* out, float* left,
                              size_t n) {
  return Best().encode_with_feedback(kept, in, carried, out, left, n);
}
void DecodeTopK(uint32_t kept, const void* in, float* out, size_t n) { Best().decode(kept, in, out, n); }

}  // namespace weir
