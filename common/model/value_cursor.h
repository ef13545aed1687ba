#pragma once

#include <algorithm>
#include <array>
#include <cstddef>
#include <cstdint>

#include "absl/strings/string_view.h"
#include "absl/types/span.h"

namespace weir {

// Walks over values whose bytes lie in pieces of any length and alignment, which may cut through a value.
// Each byte is read at most once.
class ValueCursor {
 public:
  ValueCursor(absl::Span<const absl::string_view> pieces, size_t value_bytes)
      : pieces_(pieces), value_bytes_(value_bytes) {}

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

  // Skips `count` values, which must be left.
  void Skip(int64_t count) {
    for (int64_t got = 0; count > 0; count -= got) Take(count, &got);
  }

 private:
  void NextPiece() {
    pieces_.remove_prefix(1);
    at_ = 0;
  }

  absl::Span<const absl::string_view> pieces_;
  const size_t value_bytes_;
  size_t at_ = 0;
  std::array<char, sizeof(float)> straddling_;
};

}  // namespace weir
