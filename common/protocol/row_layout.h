#pragma once

#include <cstdint>
#include <vector>

#include "absl/status/statusor.h"
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

}  // namespace weir
