#pragma once

#include <algorithm>
#include <array>
#include <cstddef>
#include <cstdint>
#include <cstdlib>
#include <cstring>

#include "absl/strings/string_view.h"
#include "absl/types/span.h"
#include "common/codec/floats.h"
#include "proto/parameter_server.pb.h"

// The types of values on the wire (v1.Dtype). Only this file knows the bytes of a type; `dtype` is a type
// that Weir knows, because others are refused where messages and configs are read. Thread-safe.
namespace weir {

// The bytes of one value.
constexpr int64_t BytesPerValue(v1::Dtype dtype) {
  static_assert(v1::Dtype_MAX == v1::BIT1,
                "a new type of values needs its cases here (docs/architecture.md)");
  if (dtype == v1::F32) return 4;
  if (dtype == v1::BF16) return 2;
  std::abort();
}

// Whether values travel as a float lies in memory, so that nothing needs to convert them.
constexpr bool IsPlain(v1::Dtype dtype) { return dtype == v1::F32; }

// Writes n values in this type, to any address. Rounds to nearest, ties to even.
inline void Encode(v1::Dtype dtype, const float* values, void* out, size_t n) {
  if (dtype == v1::BF16) return ToBfloat16(values, out, n);
  std::memcpy(out, values, n * sizeof(float));
}

// Reads n values of this type from any address, each once: they may lie in memory that another process
// writes.
inline void Decode(v1::Dtype dtype, const void* in, float* values, size_t n) {
  if (dtype == v1::BF16) return FromBfloat16(in, values, n);
  std::memcpy(values, in, n * sizeof(float));
}

// The position of the first of n values that is NaN or infinite, or that Encode() would make infinite; n:
// there is none.
inline int64_t FirstNonFinite(v1::Dtype dtype, const float* values, int64_t n) {
  return dtype == v1::BF16 ? FirstNonFiniteBfloat16(values, n) : FirstNonFinite(values, n);
}

// Walks over values whose bytes lie in pieces of any length and alignment, which may cut through a value.
// Each byte is read at most once. Not thread-safe.
class ValueCursor {
 public:
  ValueCursor(absl::Span<const absl::string_view> pieces, v1::Dtype dtype)
      : pieces_(pieces), dtype_(dtype), value_bytes_(static_cast<size_t>(BytesPerValue(dtype))) {}

  // The next values that lie together, at most `wanted`, which must be left. They are valid until the next
  // call.
  const char* Take(int64_t wanted, int64_t* got) {
    while (pieces_.front().size() == at_) NextPiece();
    const size_t left = pieces_.front().size() - at_;
    if (left >= value_bytes_) {
      *got = std::min<int64_t>(wanted, static_cast<int64_t>(left / value_bytes_));
      const char* const values = pieces_.front().data() + at_;
      at_ += static_cast<size_t>(*got) * value_bytes_;
      return values;
    }
    for (size_t i = 0; i < value_bytes_; ++i) {
      while (pieces_.front().size() == at_) NextPiece();
      straddling_[i] = pieces_.front()[at_++];
    }
    *got = 1;
    return straddling_.data();
  }

  // Writes the next n values, which must be left.
  void Read(float* to, int64_t n) {
    for (int64_t got = 0; n > 0; to += got, n -= got) {
      const char* const from = Take(n, &got);
      Decode(dtype_, from, to, static_cast<size_t>(got));
    }
  }

  // Skips n values, which must be left.
  void Skip(int64_t n) {
    for (int64_t got = 0; n > 0; n -= got) Take(n, &got);
  }

 private:
  void NextPiece() {
    pieces_.remove_prefix(1);
    at_ = 0;
  }

  absl::Span<const absl::string_view> pieces_;
  v1::Dtype dtype_;
  size_t value_bytes_;
  size_t at_ = 0;
  std::array<char, sizeof(float)> straddling_;
};

}  // namespace weir
