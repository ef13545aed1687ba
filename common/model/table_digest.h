#pragma once

#include <cstddef>
#include <cstdint>
#include <map>
#include <optional>
#include <string>

#include "absl/strings/string_view.h"
#include "absl/types/span.h"
#include "common/base/checksums.h"

// One hash of the rows of embedding tables: the same for any number of shards (docs/tables.md).
namespace weir {

// 32 bytes that the keys and values of a table's rows determine: the exclusive or of a SHA-256 for each
// bucket that has rows, over each row's key and values, little-endian, by rising keys. So the digests of a
// table's shards add up to that of the table. Not thread-safe.
class TableDigest {
 public:
  static constexpr size_t kBytes = 32;

  // The rows of a bucket come one after another, by rising keys; buckets in any order.
  void AddRow(uint64_t key, absl::Span<const float> values);
  // Of the rows so far. The next row begins another digest.
  std::string Finish();

  // Adds the digest of another shard's rows. False: it is not a digest.
  static bool Add(absl::string_view shard, std::string& sum);

 private:
  void EndBucket();

  Sha256 of_bucket_;
  std::optional<uint32_t> bucket_;  // of the last row
  std::string sum_ = std::string(kBytes, '\0');
};

// Of all tables of a job, by name: hex SHA-256 over each one's name, a zero byte and its digest.
std::string TablesSha256(const std::map<std::string, std::string>& digests);

}  // namespace weir
