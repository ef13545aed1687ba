#pragma once

#include <cstdint>
#include <memory>
#include <string>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/types/span.h"
#include "common/checkpoint/safetensors.h"
#include "common/checkpoint/table_layout.h"
#include "common/system/file_system.h"
#include "proto/checkpoint_file.pb.h"
#include "proto/shard_control.pb.h"

namespace weir {

// Writes a shard's rows of one table for a checkpoint, as they are handed over, and holds no more of them
// than a chunk. Adding takes no file, so one thread may add rows that another thread then writes. One thread
// at a time uses the writer.
class TableWriter {
 public:
  // Whose rows: `incarnation` is the shard's.
  struct Shard {
    uint32_t shard = 0;
    uint32_t num_shards = 1;
    uint64_t incarnation = 0;
  };
  // `table`: its config, slot_words, chunk_bytes, and what a section or the shard has (rows to counters, and
  // delta_since to total_counters of a delta); the rest is filled in. `index`: which of the shard's tables it
  // is. Blocks while the disk works, like all that returns a status.
  static absl::StatusOr<std::unique_ptr<TableWriter>> Create(FileSystem& fs, const std::string& dir,
                                                             uint64_t step, const Shard& shard, size_t index,
                                                             v1::CheckpointTable table);

  // The next row, by rising bucket and key: its values and then its slots. All rows come before counters, and
  // counters before the keys of removed rows and counters.
  void AddRow(uint64_t key, uint64_t updated, absl::Span<const float> words);
  void AddCounter(uint64_t key, uint64_t updated, uint32_t pushes);
  void AddRemoved(TableSection section, uint64_t key) { SectionOf(section).buffer.keys.push_back(key); }
  // The entries that were added and are not written yet fill a chunk: Write() is due.
  bool due() const;
  // Writes the chunks that are whole.
  absl::Status Write();
  // Called once, last. If `so_far` is OK and all was written, gives the file its name, durably; else removes
  // the file and returns why. Internal: fewer or more entries were added than announced.
  absl::StatusOr<v1::CheckpointTable> Finish(absl::Status so_far);

 private:
  struct Section {
    uint64_t total = 0;     // announced
    uint64_t of_chunk = 1;  // entries
    uint64_t written = 0;
    TableEntries buffer;
    uint64_t added() const { return written + buffer.keys.size(); }
    // The entries of the next chunk; 0: it is not whole.
    uint64_t Whole() const;
  };
  Section& SectionOf(TableSection section) { return sections_[static_cast<size_t>(section)]; }
  explicit TableWriter(v1::CheckpointTable table) : table_(std::move(table)) {}
  absl::Status WriteChunk(Section& section, uint64_t entries);
  absl::Status CheckComplete() const;

  v1::CheckpointTable table_;
  std::string path_;
  std::unique_ptr<StagedFile> file_;
  std::unique_ptr<SafetensorsWriter> writer_;
  Section sections_[kTableSections];
};

}  // namespace weir
