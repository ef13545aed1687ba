#pragma once

#include <cstdint>
#include <functional>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/types/span.h"
#include "common/model/model_spec.h"
#include "common/model/partition.h"
#include "common/system/file_system.h"
#include "proto/checkpoint.pb.h"

namespace weir {

// A checkpoint that is complete, to be loaded by any number of shards. Every byte that goes into a result has
// been held against its checksum; if one does not agree, or anything else is amiss, there is no result.
// DataLoss: the file, and the tensor where the damage lies in one. Immutable; thread-safe.
class CheckpointReader {
 public:
  // Reads the manifest. `folder` is that of one checkpoint (checkpoint_folder.h finds it).
  static absl::StatusOr<CheckpointReader> Open(FileSystem& fs, const std::string& folder);

  const v1::CheckpointManifest& manifest() const { return manifest_; }
  const ModelSpec& model() const { return model_; }

  // Reads all of it.
  absl::Status Verify() const;

  // Where a shard's arrays go, by local position. Their content is open after an error.
  struct Target {
    struct Slot {
      std::string name;
      absl::Span<float> values;
    };
    absl::Span<float> weights;
    std::vector<Slot> slots;  // in the optimizer's order
  };
  // What shard `shard` of `num_shards` needs to go on. With the same number of shards as when it was written,
  // its state is that of its own file, and no other is read; else it is MergeShardStates() of all
  // (shard_state.h). FailedPrecondition: another model or other slots, with the first difference.
  absl::StatusOr<v1::ShardState> LoadShard(const ModelSpec& model, uint32_t shard, uint32_t num_shards,
                                           const Target& target) const;

  // The weights alone, for a job that starts anew from them. Initial values and optimizers may differ.
  absl::Status LoadWeights(const ModelSpec& model, uint32_t shard, uint32_t num_shards,
                           absl::Span<float> weights) const;

  // Writes one safetensors file with all tensors in their shapes, which PyTorch and others open. Needs memory
  // for the largest tensor. A file that is there is replaced once the new one is whole.
  absl::Status Export(const std::string& path) const;

 private:
  class ShardFile;

  CheckpointReader(FileSystem& fs, std::string folder, v1::CheckpointManifest manifest);
  absl::StatusOr<ShardFile> OpenShard(uint32_t shard) const;
  // Fills what `file` has of the arrays (the weights, then slots) of another shard.
  absl::Status LoadFrom(const ShardFile& file, const Partition& partition, uint32_t shard,
                        const std::vector<absl::Span<float>>& arrays) const;
  absl::Status WriteExport(const std::string& path) const;

  FileSystem* fs_;
  std::string folder_;
  v1::CheckpointManifest manifest_;
  ModelSpec model_;
  Partition partition_;
};

}  // namespace weir
