#pragma once

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <vector>

// Sparse values: of each block those with the largest magnitudes, the others are zero ("top-k": Aji and
// Heafield 2017, "Sparse Communication for Distributed Gradient Descent"; Lin et al. 2018, "Deep Gradient
// Compression"). All functions give the same bits on every CPU. Thread-safe.
namespace weir {

// A block has 4,096 values, the last one perhaps fewer. Of n values KeptOf(kept, n) travel: those with the
// largest magnitudes; of equal ones those at the lower positions. On the wire a block is the positions, 16
// bits each, rising, and then the values in the same order, rounded to bfloat16; both are little-endian.
// Positions apart from values let both be checked and converted at a vector's width. A bfloat16 has a third
// fewer bytes than a float32 beside its position, and its error is small beside what does not travel.
constexpr size_t kTopKBlockValues = 4096;
// The most values of a block that may travel: 8 KiB, half of the block as float32.
constexpr uint32_t kMostKept = kTopKBlockValues / 2;
constexpr size_t kBytesOfKept = 4;

// Of a block of n >= 1 values, if `kept` of a whole block travel: 1 to kMostKept.
constexpr size_t KeptOf(uint32_t kept, size_t n) {
  return std::max<size_t>(1, (kept * n + kTopKBlockValues / 2) / kTopKBlockValues);
}
// The bytes of n values, of which only the last block may be short.
constexpr uint64_t TopKBytes(uint32_t kept, uint64_t n) {
  const uint64_t rest = n % kTopKBlockValues;
  return kBytesOfKept * (n / kTopKBlockValues * kept + (rest == 0 ? 0 : KeptOf(kept, rest)));
}
// The most values, fewer than a whole block, of which `entries` travel; 0: none, or they make a whole block.
constexpr uint64_t MostOfKept(uint32_t kept, uint64_t entries) {
  if (entries == 0 || entries >= kept) return 0;
  return ((entries + 1) * kTopKBlockValues - kTopKBlockValues / 2 - 1) / kept;
}

// Writes TopKBytes() of n values to any address. Returns n, or the position of the first block that has a NaN
// or a magnitude above kMostBlockValue (block_codec.h); what is written is then invalid.
size_t EncodeTopK(uint32_t kept, const float* in, void* out, size_t n);

// Encodes in + carried, and writes to `left` how much of that sum `out` lacks: all that does not travel, and
// what is rounded away. carried: null for zeros; may be `left`. Returns as above, of the sums.
size_t EncodeTopKWithFeedback(uint32_t kept, const float* in, const float* carried, void* out, float* left,
                              size_t n);

// Reads n values from any address. Trusts nothing: a block whose positions do not rise or are beyond it, or
// that has a value that is NaN or above kMostBlockValue, becomes NaNs, and any other block is finite. Each
// byte is read once, so the bytes may lie in memory that another process writes.
void DecodeTopK(uint32_t kept, const void* in, float* out, size_t n);

// The functions above, built for one set of CPU instructions.
struct TopKLevel {
  const char* name;  // "plain", "avx2", "avx512"
  size_t (*encode)(uint32_t kept, const float* in, void* out, size_t n);
  size_t (*encode_with_feedback)(uint32_t kept, const float* in, const float* carried, void* out, float* left,
                                 size_t n);
  void (*decode)(uint32_t kept, const void* in, float* out, size_t n);
};

// The levels that can run here, from narrow to wide. The functions above use the last.
std::vector<TopKLevel> AvailableTopKLevels();

}  // namespace weir
