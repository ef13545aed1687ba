#pragma once

#include <cstdint>
#include <map>
#include <optional>
#include <string>
#include <vector>

#include "common/checkpoint/checkpoint_reader.h"
#include "common/checkpoint/checkpoint_writer.h"
#include "common/model/model_spec.h"
#include "common/model/partition.h"
#include "common/system/file_system.h"

namespace weir {

// A model of `elements` >= 8 elements: a scalar, a matrix, a buffer, and one tensor of the rest.
ModelSpec TestModel(int64_t elements);

// A table of this name with rows of `dim` values.
v1::TableConfig TestTable(const std::string& name, uint32_t dim);

// A job's state whose every value is a pure function of `salt` and the value's place, the same for a cluster
// of any size.
struct StoredJob {
  ModelSpec model;
  std::vector<std::string> slots;
  uint64_t salt = 1;
  // Each has so many rows, and a third as many counters, on all shards together, in chunks of a few.
  std::vector<v1::TableConfig> tables = {};
  uint64_t rows = 37;
  // Of each shard. 0: one that follows from `salt`.
  uint64_t version = 0;

  struct Entry {
    uint64_t updated;
    std::vector<float> values, slots;  // of a row
    uint64_t pushes;                   // of a counter
  };
  static constexpr uint32_t kSlotWords = 3;
  // By key: the rows of a table, or its counters.
  std::map<uint64_t, Entry> Entries(size_t table, bool counters) const;

  float Value(size_t array, int64_t address) const;
  // An array of one shard: array 0 is the weights.
  std::vector<float> Array(size_t array, uint32_t shard, uint32_t num_shards) const;
  v1::ShardState State(uint32_t shard, uint32_t num_shards) const;
  // Without files.
  v1::CheckpointManifest Manifest(uint64_t step) const;

  absl::StatusOr<v1::CheckpointFile> WriteShard(FileSystem& fs, const std::string& dir, uint64_t step,
                                                uint32_t shard, uint32_t num_shards,
                                                uint64_t incarnation = 7) const;
  // All three steps of writing a checkpoint. `best`: the best checkpoint that the manifest names.
  absl::Status Write(FileSystem& fs, const std::string& dir, uint64_t step, uint32_t num_shards,
                     std::optional<uint64_t> best = std::nullopt) const;

  // Writes one shard's files of its tables and adds them to `file`.
  absl::Status WriteTables(FileSystem& fs, const std::string& dir, uint64_t step, uint64_t incarnation,
                           v1::CheckpointFile& file) const;
  // As LoadAll(), the tables of a shard alone.
  absl::Status LoadTables(const CheckpointReader& reader, uint32_t shard, uint32_t num_shards,
                          bool weights_only) const;

  // Loads every shard of a cluster of this size. OK: all bits are those of this job; Internal: some are not.
  absl::Status LoadAll(FileSystem& fs, const std::string& folder, uint32_t num_shards) const;
};

}  // namespace weir
