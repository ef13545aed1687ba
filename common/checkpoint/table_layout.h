#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "common/checkpoint/safetensors.h"
#include "proto/checkpoint_file.pb.h"

// The layout of a file with a shard's rows of one embedding table (docs/checkpoint_format.md): the rows by
// rising bucket (common/model/key_bucket.h) and key, then the counters in the same order, both in chunks, so
// that neither a writer nor a reader holds more than a chunk. A chunk's columns are tensors.
namespace weir {

// Columns of some rows, or of some counters, in their order.
struct TableEntries {
  std::vector<uint64_t> keys, updated;
  // Rows: dim and slot_words for each key.
  std::vector<float> values, slots;
  // Counters.
  std::vector<uint64_t> pushes;
};

// Chunks of the size that writers choose: large enough for a disk.
constexpr uint64_t kTableChunkBytes = 16 << 20;

std::string TableFileName(uint32_t shard, uint32_t num_shards, size_t table);

// InvalidArgument: no table has such a file; names the field.
absl::Status CheckTableSizes(const v1::CheckpointTable& table);

// These take a table whose sizes were checked.
//
// The entries of each chunk but the last.
uint64_t RowsOfChunk(const v1::CheckpointTable& table);
uint64_t CountersOfChunk(const v1::CheckpointTable& table);
// The columns of a chunk of rows: keys, updated, values, and slots where there are any. Of counters: keys,
// updated, pushes.
size_t RowColumns(const v1::CheckpointTable& table);
constexpr size_t kCounterColumns = 3;
// The number of tensors, and the tensors in their order.
uint64_t CountTensors(const v1::CheckpointTable& table);
std::vector<StoredTensor> TensorsOfTable(const v1::CheckpointTable& table);

}  // namespace weir
