#pragma once

#include <algorithm>
#include <cstdint>
#include <vector>

#include "absl/status/status.h"
#include "absl/strings/str_cat.h"

namespace weir {

// Which values of a shard's gradient or weights have come. They travel in chunks, which start and end at
// multiples of a unit or at the end, in any order, each value once. Not thread-safe.
class ChunkSet {
 public:
  ChunkSet() = default;
  // `unit` > 0. Both in elements.
  ChunkSet(uint64_t elements, uint64_t unit)
      : elements_(elements), unit_(unit), came_((elements + unit - 1) / unit), missing_(elements) {}

  // A chunk came: `bytes` of values of `value_bytes` each, from the element `first` on. InvalidArgument: this
  // is no chunk, it is longer than `most_bytes`, or some of its values came before; the set is as it was.
  absl::Status Add(uint64_t first, uint64_t bytes, uint64_t value_bytes, uint64_t most_bytes) {
    const uint64_t count = bytes / value_bytes;
    if (bytes == 0 || bytes > most_bytes || bytes % value_bytes != 0 || first % unit_ != 0 ||
        first >= elements_ || count > elements_ - first ||
        (count % unit_ != 0 && first + count != elements_)) {
      return absl::InvalidArgumentError(
          absl::StrCat("which does not fit: chunks start and end at multiples of ", unit_, " elements of ",
                       value_bytes, " bytes or at the end, and hold at most ", most_bytes, " bytes"));
    }
    const auto begin = came_.begin() + static_cast<int64_t>(first / unit_);
    const auto end = begin + static_cast<int64_t>((count + unit_ - 1) / unit_);
    const auto again = std::find(begin, end, true);
    if (again != end) {
      return absl::InvalidArgumentError(absl::StrCat(
          "of which position ", static_cast<uint64_t>(again - came_.begin()) * unit_, " came before"));
    }
    std::fill(begin, end, true);
    missing_ -= count;
    return absl::OkStatus();
  }

  bool whole() const { return missing_ == 0; }

 private:
  uint64_t elements_ = 0, unit_ = 1;
  std::vector<bool> came_;  // by unit
  uint64_t missing_ = 0;    // elements
};

}  // namespace weir
