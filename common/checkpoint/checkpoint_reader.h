#pragma once

#include <cstdint>
#include <functional>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/types/span.h"
#include "common/checkpoint/checkpoint_folder.h"
#include "common/checkpoint/manifest.h"
#include "common/checkpoint/safetensors.h"
#include "common/checkpoint/shard_file.h"
#include "common/checkpoint/table_layout.h"
#include "common/checkpoint/table_reader.h"
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
  // Reads the manifest and those of its chain. `folder` is that of one checkpoint (checkpoint_folder.h finds
  // it).
  static absl::StatusOr<CheckpointReader> Open(FileSystem& fs, const std::string& folder);

  const v1::CheckpointManifest& manifest() const { return manifest_; }
  const ModelSpec& model() const { return model_; }

  // Reads and checks the whole checkpoint, with all that it builds on.
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
  // Loads what shard `shard` of `num_shards` needs to continue. If the checkpoint has the same number of
  // shards, the state is that of the shard's own file, and no other file is read; else it is
  // MergeShardStates() of all files (shard_file.h). FailedPrecondition: the model or the slots differ; names
  // the first difference.
  absl::StatusOr<v1::ShardState> LoadShard(const ModelSpec& model, uint32_t shard, uint32_t num_shards,
                                           const Target& target) const;

  // Whether a job with this model can start anew from the weights alone. Initial values and optimizers may
  // differ. FailedPrecondition: names the first difference.
  absl::Status CheckModel(const ModelSpec& model) const;
  // Loads the weights alone, for such a job.
  absl::Status LoadWeights(const ModelSpec& model, uint32_t shard, uint32_t num_shards,
                           absl::Span<float> weights) const;

  // The embedding tables, which are the same on all shards, and the rows of one on all of them together.
  size_t NumTables() const;
  const v1::TableConfig& TableAt(size_t index) const;
  // NumTables(): there is no such table.
  size_t FindTable(const std::string& name) const;
  uint64_t RowsOf(size_t index) const;
  // Whether a job with these tables can take them from here. FailedPrecondition: names the first difference.
  // To continue a job, name, dim, initial values and the kind of optimizer of each table must agree. For
  // weights alone, only the dim of each table that is here must agree, and a job may have other tables, which
  // begin without rows.
  absl::Status CheckTables(const std::vector<v1::TableConfig>& tables, bool weights_only) const;

  // The version that a table (FindTable()) has for shard `shard` of `num_shards`: that of the same shard
  // here, or else the highest of all. 0: it is not here.
  uint64_t VersionOfTable(size_t index, uint32_t shard, uint32_t num_shards) const;

  // Where a shard's rows of one table go: chunks, in no set order of keys. An error of a function is the
  // result.
  struct TableTarget {
    std::function<absl::Status(const TableEntries&)> rows;
    // Null: weights alone are wanted. The rows have no slots then.
    std::function<absl::Status(const TableEntries&)> counters;
  };
  // Loads what shard `shard` of `num_shards` has of a table (FindTable()), and nothing of one that is not
  // here. Rows that were handed out before an error are right, but they are not all.
  absl::Status LoadTable(size_t index, uint32_t shard, uint32_t num_shards, const TableTarget& target) const;

  // Writes one safetensors file, which PyTorch and others open. It has all tensors in their shapes, each
  // under all of its names, and for each table NAME/keys (I64, the bits of the keys) and NAME/values, a row
  // for each key. Needs memory for the largest tensor of the model. An existing file is replaced once the new
  // one is whole. `with`: a safetensors file whose tensors are added where the checkpoint has none of the
  // name; "" is none. Returns how many were added. FailedPrecondition: that file has a tensor in another
  // shape.
  absl::StatusOr<size_t> Export(const std::string& path, const std::string& with = "") const;

 private:
  CheckpointReader(FileSystem& fs, std::string folder, v1::CheckpointManifest manifest,
                   std::vector<ChainLink> chain);
  absl::StatusOr<ShardFile> OpenShard(uint32_t shard) const;
  // Copies what shard `shard` of the partition `to` has of a tensor in `file`. `values`: its elements from
  // the local position `begin` on.
  absl::Status Copy(const ShardFile& file, size_t tensor, const Partition& to, uint32_t shard, int64_t begin,
                    absl::Span<float> values) const;
  // Fills a shard's arrays (the weights, then slots). Returns the states of the files that it has read.
  absl::StatusOr<std::vector<v1::ShardState>> LoadArrays(uint32_t shard, uint32_t num_shards,
                                                         const std::vector<absl::Span<float>>& arrays) const;
  class Additions;
  absl::Status WriteExport(WritableFile& file, const std::string& path, const Additions& additions) const;
  absl::StatusOr<TableChain> OpenTable(uint32_t shard, size_t index, TableReader::Columns columns) const;
  absl::Status AddExportedTables(std::vector<StoredTensor>& tensors) const;
  absl::Status ExportTables(SafetensorsWriter& writer) const;

  FileSystem* fs_;
  std::string folder_;
  v1::CheckpointManifest manifest_;
  std::vector<ChainLink> chain_;
  ModelSpec model_;
  Partition partition_;
};

// Reads every byte of the checkpoint in this folder, and of what it builds on. Errors: as CheckpointReader.
absl::Status ReadWhole(FileSystem& fs, const std::string& folder);

// The newest checkpoint of a step below `below` in a folder of checkpoints that is whole, as ReadWhole()
// says. `damaged` is called for each checkpoint that is not, with its folder and what is wrong; may be null.
// DataLoss: none is whole, or the path names one checkpoint; says what was seen.
using OnDamaged = std::function<void(const std::string& folder, const std::string& why)>;
absl::StatusOr<FoundCheckpoint> FindWholeBefore(FileSystem& fs, const std::string& path, uint64_t below,
                                                const OnDamaged& damaged = nullptr);

}  // namespace weir
