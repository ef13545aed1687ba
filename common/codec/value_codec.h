#pragma once

#include <algorithm>
#include <array>
#include <cstddef>
#include <cstdint>
#include <cstdlib>
#include <cstring>

#include "absl/strings/string_view.h"
#include "absl/types/span.h"
#include "common/codec/block_codec.h"
#include "common/codec/floats.h"
#include "common/codec/topk_codec.h"
#include "proto/parameter_server.pb.h"

// The types of values on the wire (v1.Dtype). Only this file knows the bytes of a type; the type is one that
// Weir knows, because others are refused where messages and configs are read. Thread-safe.
//
// In a fixed type each value has bytes of its own. The values of a quantised type travel in blocks, of which
// the last one of a chunk may be short: with a scale each (block_codec.h), or the largest alone
// (topk_codec.h). Only the dense values of pushes are quantised.
namespace weir {

constexpr bool IsQuantised(v1::Dtype dtype) {
  static_assert(v1::Dtype_MAX == v1::TOPK,
                "a new type of values needs its cases here (docs/architecture.md)");
  return dtype == v1::INT8 || dtype == v1::INT4 || dtype == v1::BIT1 || dtype == v1::TOPK;
}

// A type of values, with all that their bytes depend on beside their number.
struct WireType {
  // NOLINTNEXTLINE(google-explicit-constructor): most types are nothing but a Dtype.
  constexpr WireType(v1::Dtype of_dtype, uint32_t of_kept = 0) : dtype(of_dtype), kept(of_kept) {}

  v1::Dtype dtype;
  uint32_t kept;  // TOPK: of a whole block, 1 to kMostKept
};
inline WireType TypeOf(const v1::PushRequest& push) { return {push.dtype(), push.kept()}; }

// The values of a whole block of a quantised type.
constexpr uint64_t BlockValuesOf(v1::Dtype dtype) {
  return dtype == v1::TOPK ? kTopKBlockValues : kBlockValues;
}

// The code of a quantised type with scales.
constexpr BlockCode CodeOf(v1::Dtype dtype) {
  return dtype == v1::INT8 ? BlockCode::kInt8 : dtype == v1::INT4 ? BlockCode::kInt4 : BlockCode::kBit1;
}

// The bytes of one value of a fixed type.
constexpr int64_t BytesPerValue(v1::Dtype dtype) {
  if (dtype == v1::F32) return 4;
  if (dtype == v1::BF16) return 2;
  std::abort();
}

// The bytes of a chunk of n values of any type.
constexpr uint64_t EncodedBytes(WireType type, uint64_t n) {
  if (type.dtype == v1::TOPK) return TopKBytes(type.kept, n);
  if (IsQuantised(type.dtype)) return BlockBytes(CodeOf(type.dtype), n);
  return n * static_cast<uint64_t>(BytesPerValue(type.dtype));
}

// The most values that a chunk of so many bytes may have. It has that many, or fewer of the same
// EncodedBytes(), if there are any.
constexpr uint64_t MostValues(WireType type, uint64_t bytes) {
  if (!IsQuantised(type.dtype)) return bytes / static_cast<uint64_t>(BytesPerValue(type.dtype));
  const uint64_t block = BlockValuesOf(type.dtype), whole = EncodedBytes(type, block), rest = bytes % whole;
  if (type.dtype == v1::TOPK) return bytes / whole * block + MostOfKept(type.kept, rest / kBytesOfKept);
  const BlockCode code = CodeOf(type.dtype);
  const uint64_t codes = rest <= ScaleBytes(code) ? 0 : rest - ScaleBytes(code);
  return bytes / whole * block + codes * 8 / BitsPerCode(code);
}

// Whether values travel as a float lies in memory, so that nothing needs to convert them.
constexpr bool IsPlain(v1::Dtype dtype) { return dtype == v1::F32; }

// Writes n values in this fixed type, to any address. Rounds to nearest, ties to even.
inline void Encode(v1::Dtype dtype, const float* values, void* out, size_t n) {
  if (dtype == v1::BF16) return ToBfloat16(values, out, n);
  std::memcpy(out, values, n * sizeof(float));
}

// Reads n values of this fixed type from any address, each once: they may lie in memory that another process
// writes.
inline void Decode(v1::Dtype dtype, const void* in, float* values, size_t n) {
  if (dtype == v1::BF16) return FromBfloat16(in, values, n);
  std::memcpy(values, in, n * sizeof(float));
}

// EncodeBlocks(), EncodeBlocksWithFeedback() and DecodeBlocks() of block_codec.h for any quantised type.
inline size_t EncodeBlocks(WireType type, const float* in, void* out, size_t n) {
  return type.dtype == v1::TOPK ? EncodeTopK(type.kept, in, out, n)
                                : EncodeBlocks(CodeOf(type.dtype), in, out, n);
}
inline size_t EncodeBlocksWithFeedback(WireType type, const float* in, const float* carried, void* out,
                                       float* left, size_t n) {
  return type.dtype == v1::TOPK ? EncodeTopKWithFeedback(type.kept, in, carried, out, left, n)
                                : EncodeBlocksWithFeedback(CodeOf(type.dtype), in, carried, out, left, n);
}
inline void DecodeBlocks(WireType type, const void* in, float* out, size_t n) {
  if (type.dtype == v1::TOPK) return DecodeTopK(type.kept, in, out, n);
  DecodeBlocks(CodeOf(type.dtype), in, out, n);
}

// The position of the first of n values that is NaN or infinite, or that the type, fixed or quantised, cannot
// carry; n: there is none.
inline int64_t FirstNonFinite(v1::Dtype dtype, const float* values, int64_t n) {
  if (IsQuantised(dtype)) return FirstBeyond(values, n, kMostBlockValue);
  return dtype == v1::BF16 ? FirstNonFiniteBfloat16(values, n) : FirstNonFinite(values, n);
}

// Walks over the values of a chunk, whose bytes lie in pieces of any length and alignment, which may cut
// through a value. Each byte of a fixed type, and what a block is checked by, is read at most once. Not
// thread-safe.
class ValueCursor {
 public:
  // The most values that Take() converts at once: they stay in the first-level cache.
  static constexpr int64_t kStretch = 2048;

  // The pieces hold EncodedBytes() of `values` values.
  ValueCursor(absl::Span<const absl::string_view> pieces, WireType type, int64_t values)
      : pieces_(pieces), type_(type), left_(values) {}

  // The next values that lie together, as float32 at any address: at most `wanted`, which must be left. They
  // are valid until the next call. converted: room for kStretch values, where they may lie.
  const void* Take(int64_t wanted, float* converted, int64_t* got) {
    if (IsQuantised(type_.dtype)) return TakeOfBlocks(wanted, converted, got);
    const auto bytes = static_cast<size_t>(BytesPerValue(type_.dtype));
    if (!IsPlain(type_.dtype)) wanted = std::min(wanted, kStretch);
    int64_t together = 0;
    const char* const values = TakeUnits(wanted, bytes, &together);
    *got = together;
    left_ -= together;
    if (IsPlain(type_.dtype)) return values;
    Decode(type_.dtype, values, converted, static_cast<size_t>(together));
    return converted;
  }

  // Writes the next n values, which must be left.
  void Read(float* to, int64_t n) {
    std::array<float, kStretch> converted;
    for (int64_t got = 0; n > 0; to += got, n -= got) {
      const void* const from = Take(n, converted.data(), &got);
      std::memcpy(to, from, static_cast<size_t>(got) * sizeof(float));
    }
  }

  // Skips n values, which must be left; of a quantised type, whole blocks.
  void Skip(int64_t n) {
    left_ -= n;
    for (uint64_t bytes = EncodedBytes(type_, static_cast<uint64_t>(n)); bytes > 0;) {
      while (pieces_.front().size() == at_) NextPiece();
      const uint64_t step = std::min<uint64_t>(bytes, pieces_.front().size() - at_);
      at_ += step;
      bytes -= step;
    }
  }

 private:
  static constexpr size_t kMostBlockBytes =
      std::max<size_t>(BlockBytes(BlockCode::kInt8, kBlockValues), TopKBytes(kMostKept, kTopKBlockValues));

  // The next units of so many bytes that lie together, at most `wanted`; one that lies in several pieces is
  // copied.
  const char* TakeUnits(int64_t wanted, size_t bytes, int64_t* got) {
    while (pieces_.front().size() == at_) NextPiece();
    const size_t left = pieces_.front().size() - at_;
    if (left >= bytes) {
      *got = std::min<int64_t>(wanted, static_cast<int64_t>(left / bytes));
      const char* const units = pieces_.front().data() + at_;
      at_ += static_cast<size_t>(*got) * bytes;
      return units;
    }
    for (size_t i = 0; i < bytes; ++i) {
      while (pieces_.front().size() == at_) NextPiece();
      straddling_[i] = pieces_.front()[at_++];
    }
    *got = 1;
    return straddling_.data();
  }

  const float* TakeOfBlocks(int64_t wanted, float* converted, int64_t* got) {
    if (block_at_ == block_end_) {
      const auto block = static_cast<int64_t>(BlockValuesOf(type_.dtype));
      const int64_t whole = std::min(wanted, kStretch) / block;
      const int64_t length = std::min(left_, block);
      int64_t blocks = 0;
      const char* const from =
          TakeUnits(std::max<int64_t>(whole, 1), EncodedBytes(type_, static_cast<uint64_t>(length)), &blocks);
      if (whole > 0) {
        *got = blocks * block;
        left_ -= *got;
        DecodeBlocks(type_, from, converted, static_cast<size_t>(*got));
        return converted;
      }
      DecodeBlocks(type_, from, block_.data(), static_cast<size_t>(length));
      block_at_ = 0;
      block_end_ = length;
      left_ -= length;
    }
    *got = std::min(wanted, block_end_ - block_at_);
    const float* const values = block_.data() + block_at_;
    block_at_ += *got;
    return values;
  }

  void NextPiece() {
    pieces_.remove_prefix(1);
    at_ = 0;
  }

  absl::Span<const absl::string_view> pieces_;
  WireType type_;
  int64_t left_;  // values that were not read from the pieces
  size_t at_ = 0;
  std::array<char, kMostBlockBytes> straddling_;
  // The rest of a block that was taken in part.
  int64_t block_at_ = 0, block_end_ = 0;
  std::array<float, std::max(kBlockValues, kTopKBlockValues)> block_;
};

}  // namespace weir
