#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "common/checkpoint/safetensors.h"
#include "proto/checkpoint_file.pb.h"

// The layout of a file with a shard's rows of one embedding table (docs/checkpoint_format.md): sections of
// entries by rising bucket (common/model/key_bucket.h) and key, in chunks. So neither a writer nor a reader
// holds more than a chunk of each section. A chunk's columns are tensors.
namespace weir {

// In the order of the file. The last two are those of a delta.
enum class TableSection { kRows, kCounters, kRemovedRows, kRemovedCounters };
constexpr size_t kTableSections = 4;

// Columns of some entries of one section, in their order.
struct TableEntries {
  std::vector<uint64_t> keys;
  // Of rows and counters.
  std::vector<uint64_t> updated;
  // Rows: dim and slot_words for each key.
  std::vector<float> values, slots;
  // Counters.
  std::vector<uint64_t> pushes;
};

// Calls visit(column, width) for each column. `width`: its values for each key, in a row of `table`.
template <typename Entries, typename Visit>
void ForEachColumn(const v1::CheckpointTable& table, Entries& entries, const Visit& visit) {
  visit(entries.keys, 1);
  visit(entries.updated, 1);
  visit(entries.values, table.table().dim());
  visit(entries.slots, table.slot_words());
  visit(entries.pushes, 1);
}

// Chunks of the size that writers choose: large enough for a disk, and small enough for a reader that reads
// deltas beside each other.
constexpr uint64_t kTableChunkBytes = 16 << 20, kDeltaChunkBytes = 2 << 20;

// A delta has a different name from a file with all rows, so that a program that knows no deltas refuses it.
std::string TableFileName(uint32_t shard, uint32_t num_shards, size_t table, bool delta);

// InvalidArgument: no table has such a file; names the field.
absl::Status CheckTableSizes(const v1::CheckpointTable& table);

// These take a table whose sizes were checked.
//
// The entries of a section, and of each of its chunks but the last.
uint64_t EntriesOf(const v1::CheckpointTable& table, TableSection section);
uint64_t EntriesOfChunk(const v1::CheckpointTable& table, TableSection section);
// The columns of a chunk: keys; of rows and counters then updated; of rows values, and slots where there are
// any; of counters pushes.
size_t ColumnsOf(const v1::CheckpointTable& table, TableSection section);
// The number of a section's tensors, that of all, and the tensors in their order.
uint64_t CountTensors(const v1::CheckpointTable& table, TableSection section);
uint64_t CountTensors(const v1::CheckpointTable& table);
std::vector<StoredTensor> TensorsOfTable(const v1::CheckpointTable& table);
// The bytes of the tensors of such a file.
uint64_t TableBytes(const v1::CheckpointTable& table);
// The version of a table in a shard's file.
uint64_t VersionOfTable(const v1::CheckpointFile& file, const v1::CheckpointTable& table);
// The number of rows, and of counters, that the shard has at the version of the file, whether or not the file
// has all of them.
uint64_t RowsOfShard(const v1::CheckpointTable& table);
uint64_t CountersOfShard(const v1::CheckpointTable& table);

}  // namespace weir
