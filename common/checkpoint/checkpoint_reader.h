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

// A complete checkpoint, which any number of shards can load. Every byte that goes into a result was checked
// against its checksum; if a checksum differs, or anything else is wrong, there is no result. DataLoss names
// the file, and the tensor if the damage lies in one. Immutable; thread-safe.
class CheckpointReader {
 public:
  // Reads the manifest. `folder` is that of one checkpoint (checkpoint_folder.h finds it).
  static absl::StatusOr<CheckpointReader> Open(FileSystem& fs, const std::string& folder);

  const v1::CheckpointManifest& manifest() const { return manifest_; }
  const ModelSpec& model() const { return model_; }

  // Reads and checks the whole checkpoint.
  absl::Status Verify() const;

  // Where a shard's arrays go, by local position. Their content is unspecified after an error.
  struct Target {
    struct Slot {
      std::string name;
      absl::Span<float> values;
    };
    absl::Span<float> weights;
    std::vector<Slot> slots;  // in the optimizer's order
  };
  // Loads what shard `shard` of `num_shards` needs to go on. If the checkpoint has the same number of shards,
  // the state is that of the shard's own file, and no other file is read; else it is MergeShardStates() of
  // all files (shard_state.h). FailedPrecondition: the model or the slots differ; names the first difference.
  absl::StatusOr<v1::ShardState> LoadShard(const ModelSpec& model, uint32_t shard, uint32_t num_shards,
                                           const Target& target) const;

  // Loads the weights alone, for a job that starts anew from them. Initial values and optimizers may differ.
  absl::Status LoadWeights(const ModelSpec& model, uint32_t shard, uint32_t num_shards,
                           absl::Span<float> weights) const;

  // Writes one safetensors file with all tensors in their shapes, which PyTorch and others open. Needs memory
  // for the largest tensor. An existing file is replaced once the new one is whole.
  absl::Status Export(const std::string& path) const;

 private:
  class ShardFile;

  CheckpointReader(FileSystem& fs, std::string folder, v1::CheckpointManifest manifest);
  absl::StatusOr<ShardFile> OpenShard(uint32_t shard) const;
  // Fills the part of another shard's arrays (the weights, then slots) that `file` holds.
  absl::Status LoadFrom(const ShardFile& file, const Partition& partition, uint32_t shard,
                        const std::vector<absl::Span<float>>& arrays) const;
  absl::Status WriteExport(WritableFile& file, const std::string& path) const;

  FileSystem* fs_;
  std::string folder_;
  v1::CheckpointManifest manifest_;
  ModelSpec model_;
  Partition partition_;
};

}  // namespace weir
