#pragma once

#include <cstddef>
#include <cstdint>
#include <vector>

// Quantised values in blocks that have a scale each, as block-wise 8 bits (Dettmers 2015; Dettmers et al.
// 2022, "8-bit Optimizers via Block-wise Quantization") and 1 bit (Seide et al. 2014). All functions give the
// same bits on every CPU. Thread-safe.
namespace weir {

// A block has 256 values, the last one perhaps fewer. On the wire it is its scale, little-endian, and then
// the codes of its n values. With max = the largest magnitude in the block:
//
//   kInt8  260 bytes. scale = max / 127, a float32. A code is a byte in two's complement, value * (127 / max)
//          rounded to nearest, ties to even; it stands for code * scale.
//   kInt4  130 bytes. scale = max / 7, rounded to a bfloat16. A code is 4 bits in two's complement, value *
//          (1 / scale) rounded as above; it stands for code * scale. Byte j has the code of value j below,
//          and that of value j + ceil(n / 2) above, if there is one.
//   kBit1  34 bytes. scale = the mean magnitude, rounded to a bfloat16. A code is 1 if the value is below
//          zero; it stands for -scale, 0 for scale. Bit b of byte j is the code of value b * ceil(n / 8) + j,
//          if there is one.
//
// Each operation is one of float32, rounded to nearest; 127 / max and 1 / scale are rounded, too. The mean is
// summed in 16 lanes: lane l has the values l, l + 16, ..., and lanes l and l + 8 are added, then l and l +
// 4, and so on. Bits that belong to no value are 0, and are not read. If max < 2^-100, the scale is 0, and so
// are all values that are read.
enum class BlockCode { kInt8, kInt4, kBit1 };

constexpr size_t kBlockValues = 256;
// The largest magnitude that a block may have: 2^119, 6.6e35. So neither a sum nor a product overflows.
constexpr float kMostBlockValue = 0x1p119f;

constexpr size_t ScaleBytes(BlockCode code) { return code == BlockCode::kInt8 ? 4 : 2; }
constexpr size_t BitsPerCode(BlockCode code) {
  return code == BlockCode::kInt8 ? 8 : code == BlockCode::kInt4 ? 4 : 1;
}
// The bytes of n values, of which only the last block may be short.
constexpr uint64_t BlockBytes(BlockCode code, uint64_t n) {
  const uint64_t whole = ScaleBytes(code) + kBlockValues * BitsPerCode(code) / 8;
  const uint64_t rest = n % kBlockValues;
  return n / kBlockValues * whole + (rest == 0 ? 0 : ScaleBytes(code) + (rest * BitsPerCode(code) + 7) / 8);
}

// Writes BlockBytes() of n values to any address. Returns n, or the position of the first block that has a
// NaN or a magnitude above kMostBlockValue; what is written is then invalid.
size_t EncodeBlocks(BlockCode code, const float* in, void* out, size_t n);

// Encodes in + carried, and writes to `left` how much of that sum `out` lacks: what error feedback carries to
// the next gradient (Seide et al. 2014; Karimireddy et al. 2019, algorithm 2). carried: null for zeros; may
// be `left`. Returns as above, of the sums.
size_t EncodeBlocksWithFeedback(BlockCode code, const float* in, const float* carried, void* out, float* left,
                                size_t n);

// Reads n values from any address. Trusts nothing: a block whose scale is negative, NaN or above
// kMostBlockValue becomes NaNs, and any other block is finite. Each scale is read once, so the bytes may lie
// in memory that another process writes.
void DecodeBlocks(BlockCode code, const void* in, float* out, size_t n);

// The functions above, built for one set of CPU instructions.
struct BlockCodecLevel {
  const char* name;  // "plain", "avx2", "avx512"
  size_t (*encode)(BlockCode code, const float* in, void* out, size_t n);
  size_t (*encode_with_feedback)(BlockCode code, const float* in, const float* carried, void* out,
                                 float* left, size_t n);
  void (*decode)(BlockCode code, const void* in, float* out, size_t n);
};

// The levels that can run here, from narrow to wide. The functions above use the last.
std::vector<BlockCodecLevel> AvailableBlockCodecLevels();

}  // namespace weir
