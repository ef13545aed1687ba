#pragma once

#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "common/checkpoint/safetensors.h"
#include "common/checkpoint/table_layout.h"
#include "common/system/file_system.h"
#include "proto/checkpoint_file.pb.h"

namespace weir {

// Reads a shard's rows of one table, front to back, chunk by chunk. A chunk is handed out only when its
// checksums are right and its keys are in their order and of the shard. DataLoss names the file, and the
// tensor if the damage lies in one. Not thread-safe.
class TableReader {
 public:
  // What is read of rows; what is left out stays empty. Keys and updates always are.
  enum class Columns { kKeys, kValues, kAll };

  // `file`: of the shard that wrote the table. Both are of a manifest that was checked, and outlive the
  // reader.
  static absl::StatusOr<TableReader> Open(FileSystem& fs, const std::string& folder,
                                          const v1::CheckpointFile& file, const v1::CheckpointTable& table,
                                          Columns columns);

  const v1::CheckpointTable& table() const { return *table_; }

  // Replaces the content of `entries` by the next chunk of rows, or, after all rows, of counters. False:
  // there is none.
  absl::StatusOr<bool> NextRows(TableEntries& entries);
  absl::StatusOr<bool> NextCounters(TableEntries& entries);

 private:
  TableReader(std::string path, const v1::CheckpointFile& file, const v1::CheckpointTable& table,
              Columns columns);
  absl::Status CheckHeader() const;
  // Reads the next tensor, or passes over it.
  template <typename T>
  absl::Status ReadColumn(std::vector<T>* column);
  absl::Status ReadKeys(TableEntries& entries);

  std::string path_;
  const v1::CheckpointFile* shard_;
  const v1::CheckpointTable* table_;
  Columns columns_;
  std::vector<StoredTensor> tensors_;
  std::unique_ptr<ReadableFile> file_;
  size_t next_ = 0, first_counters_ = 0;  // tensors
  // The hash and key of the last entry, whose order the next one keeps.
  bool any_ = false;
  uint32_t last_bucket_ = 0;
  uint64_t last_key_ = 0;
};

}  // namespace weir
