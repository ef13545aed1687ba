#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "common/checkpoint/manifest.h"
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

// Reads a shard's rows of one table as they are after a chain of files, each sorted by bucket and key. For
// each key the newest file that has the key counts, be it with a row or as removed. Holds a chunk of each
// section of each file. The errors are TableReader's, and DataLoss if the result is not as large as the
// newest file says. Not thread-safe.
class TableChain {
 public:
  // `files`: FilesOfTable(); what they point to outlives the chain.
  static absl::StatusOr<TableChain> Open(FileSystem& fs, const std::vector<TableFile>& files,
                                         TableReader::Columns columns);

  // Replaces the content of `entries` by the next rows, or counters, by rising bucket and key. False: there
  // are none.
  absl::StatusOr<bool> NextRows(TableEntries& entries) { return Next(rows_, entries); }
  absl::StatusOr<bool> NextCounters(TableEntries& entries) { return Next(counters_, entries); }

 private:
  // A section of a file, at its next entry.
  struct Cursor {
    size_t reader;
    TableSection section;
    TableEntries entries = {};
    size_t at = 0;
    bool done = false;
    uint32_t bucket = 0;
    uint64_t key = 0;
    bool Before(const Cursor& other) const {
      return bucket != other.bucket ? bucket < other.bucket : key < other.key;
    }
  };
  // The reading of the rows, or of the counters.
  struct Merge {
    TableSection kept, removed;
    std::string name;
    bool begun = false;
    std::vector<Cursor> cursors = {};  // the newest file first
    uint64_t entries = 0;              // that were handed out
  };

  TableChain() = default;
  absl::StatusOr<bool> Next(Merge& merge, TableEntries& entries);
  absl::Status Begin(Merge& merge);
  // Goes to the next entry; reads a chunk if it has to.
  absl::Status Advance(Cursor& cursor);
  // Takes the lowest key: of the cursors that are at this key, the newest counts. If one cursor is alone at
  // the key, takes all that this cursor has before the next key of another cursor, up to `most` entries.
  // False: there is none.
  absl::StatusOr<bool> Take(Merge& merge, uint64_t most, TableEntries& entries);

  std::vector<TableReader> readers_;  // the oldest file first
  Merge rows_ = {TableSection::kRows, TableSection::kRemovedRows, "rows"};
  Merge counters_ = {TableSection::kCounters, TableSection::kRemovedCounters, "counters"};
};

}  // namespace weir
