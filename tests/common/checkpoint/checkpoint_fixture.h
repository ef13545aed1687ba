#pragma once

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

// A job's state whose every value is a pure function of `salt` and the value's place, the same for a cluster
// of any size.
struct StoredJob {
  ModelSpec model;
  std::vector<std::string> slots;
  uint64_t salt = 1;

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

  // Loads every shard of a cluster of this size. OK: all bits are those of this job; Internal: some are not.
  absl::Status LoadAll(FileSystem& fs, const std::string& folder, uint32_t num_shards) const;
};

}  // namespace weir
