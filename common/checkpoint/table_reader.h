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

// Reads the file of a shard's table, each section front to back, chunk by chunk. A chunk is handed out only
// when its checksums are right and its keys are in their order and of the shard. DataLoss names the file, and
// the tensor if the damage lies in one. Not thread-safe.
class TableReader {
 public:
  // The columns of rows that are read; the others stay empty. Keys and updates are always read.
  enum class Columns { kKeys, kValues, kAll };

  // `file`: of the shard that wrote the table. Both are of a manifest that was checked, and outlive the
  // reader.
  static absl::StatusOr<TableReader> Open(FileSystem& fs, const std::string& folder,
                                          const v1::CheckpointFile& file, const v1::CheckpointTable& table,
                                          Columns columns);

  const v1::CheckpointTable& table() const { return *table_; }
  const std::string& path() const { return path_; }

  // Replaces the content of `entries` by the next chunk of a section. False: there is none.
  absl::StatusOr<bool> Next(TableSection section, TableEntries& entries);

 private:
  // Where a section is read.
  struct Position {
    size_t next = 0, end = 0;  // tensors
    // The last entry, whose order the next one keeps.
    bool any = false;
    uint32_t last_bucket = 0;
    uint64_t last_key = 0;
  };
  TableReader(std::string path, const v1::CheckpointFile& file, const v1::CheckpointTable& table,
              Columns columns);
  absl::Status CheckHeader() const;
  // Reads the next tensor, or passes over it.
  template <typename T>
  absl::Status ReadColumn(Position& at, std::vector<T>* column);
  absl::Status CheckKeys(const std::string& tensor, Position& at, const TableEntries& entries) const;

  std::string path_;
  const v1::CheckpointFile* shard_;
  const v1::CheckpointTable* table_;
  Columns columns_;
  std::vector<StoredTensor> tensors_;
  std::unique_ptr<ReadableFile> file_;
  Position positions_[kTableSections];
};

}  // namespace weir
