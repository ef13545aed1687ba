#pragma once

#include <algorithm>
#include <cstdint>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/strings/str_cat.h"
#include "common/codec/value_codec.h"
#include "google/protobuf/repeated_field.h"
#include "proto/parameter_server.pb.h"

namespace weir {

// Where an exchange's rows (v1.Rows) lie in their bytes, which both ends compute from the same messages.
class RowLayout {
 public:
  using Entries = google::protobuf::RepeatedPtrField<v1::Rows>;

  struct Entry {
    uint32_t table = 0;
    uint64_t keys = 0;
    uint64_t row_bytes = 0;  // of one row's values
    // Bytes from the beginning of the string. In a reply there are no keys: keys_at is values_at. Of a pull's
    // keys in a request values_at is the end of the keys.
    uint64_t keys_at = 0;
    uint64_t values_at = 0;
    uint64_t end = 0;
  };

  // No rows.
  RowLayout() = default;
  // The rows that a request brings: a push's keys and gradients (`dtype`: the push's), then a pull's keys.
  // `dims`: of each table of the job. InvalidArgument: a table that the job does not have, tables that do not
  // rise, no keys, or more than kMaxRowBytes; the message names the field.
  static absl::StatusOr<RowLayout> OfRequest(const Entries& push, v1::Dtype dtype, const Entries& pull,
                                             const std::vector<uint32_t>& dims);
  // The rows of a reply to a pull, in its dtype. Errors as of OfRequest().
  static absl::StatusOr<RowLayout> OfReply(const Entries& pull, v1::Dtype dtype,
                                           const std::vector<uint32_t>& dims);

  // The push's entries, then the pull's (OfRequest); the pull's (OfReply).
  const std::vector<Entry>& push() const { return push_; }
  const std::vector<Entry>& pull() const { return pull_; }
  uint64_t bytes() const { return bytes_; }

 private:
  absl::Status Append(const Entries& entries, const char* field, uint64_t key_bytes, uint64_t value_bytes,
                      const std::vector<uint32_t>& dims, std::vector<Entry>& out);

  std::vector<Entry> push_, pull_;
  uint64_t bytes_ = 0;
};

// Which values of a shard's gradient or weights have come. They travel in chunks, which start and end at
// multiples of a unit or at the end, in any order, each value once. Not thread-safe.
class ChunkSet {
 public:
  ChunkSet() = default;
  // `unit` > 0. Both in elements.
  ChunkSet(uint64_t elements, uint64_t unit)
      : elements_(elements), unit_(unit), came_((elements + unit - 1) / unit), missing_(elements) {}

  // A chunk came: `bytes` of values of this type, whose blocks do not cross the unit's borders, from the
  // element `first` on. Returns how many values.
  // InvalidArgument: this is no chunk, or some of its values came before, or it is longer than `most_bytes`.
  // Then the set is as it was. The limit counts a quantised chunk as float32.
  absl::StatusOr<uint64_t> Add(uint64_t first, uint64_t bytes, WireType type, uint64_t most_bytes) {
    const uint64_t count = first < elements_ ? std::min(MostValues(type, bytes), elements_ - first) : 0;
    if (count == 0 || bytes > most_bytes || EncodedBytes(type, count) != bytes ||
        (IsQuantised(type.dtype) && count * sizeof(float) > most_bytes) || first % unit_ != 0 ||
        (count % unit_ != 0 && first + count != elements_)) {
      return absl::InvalidArgumentError(absl::StrCat(
          "which does not fit: chunks start and end at multiples of ", unit_, " elements or at ",
          "the end, are in ", v1::Dtype_Name(type.dtype), ", and hold at most ", most_bytes, " bytes"));
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
    return count;
  }

  bool whole() const { return missing_ == 0; }

 private:
  uint64_t elements_ = 0, unit_ = 1;
  std::vector<bool> came_;  // by unit
  uint64_t missing_ = 0;    // elements
};

// InvalidArgument: the push's values are of a type that this program does not know, or that cannot be.
absl::Status CheckPushType(const v1::PushRequest& push);

// Returns whether an exchange continues with its pull after this answer to its push. Any other answer ends
// it.
inline bool PullFollows(v1::Outcome push) {
  return push == v1::OK || push == v1::REFUSED || push == v1::DUPLICATE_BATCH || push == v1::STALE_VERSION;
}

}  // namespace weir
