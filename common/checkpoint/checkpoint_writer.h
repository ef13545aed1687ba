#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/types/span.h"
#include "common/checkpoint/checkpoint_folder.h"
#include "common/model/model_spec.h"
#include "common/system/file_system.h"
#include "proto/checkpoint.pb.h"

namespace weir {

// A checkpoint is written in three stages (docs/checkpoint_format.md):
//   the coordinator   BeginCheckpoint(), checkpoint_folder.h
//   each shard        WriteShardFile(), of a frozen version; its answer goes to the coordinator
//   the coordinator   CommitCheckpoint(); only from then on is there a checkpoint
// An error in any stage leaves no checkpoint, and the older ones as they are.

// OK if a file can hold these names beside those of slots: UTF-8, not "__metadata__", not beginning with
// "weir.". Else InvalidArgument. Called before a job starts.
absl::Status CheckTensorNames(const ModelSpec& model);

// A version of a shard, frozen while it is written.
struct ShardSnapshot {
  struct Slot {
    std::string name;
    absl::Span<const float> values;
  };
  ModelSpec model;
  v1::ShardState state;
  // By local position.
  absl::Span<const float> weights;
  std::vector<Slot> slots;  // in the optimizer's order
};

// Writes the file of one shard, durably, without a copy of the arrays. Blocks while the disk works.
// AlreadyExists: the name is taken, by another incarnation of the shard.
absl::StatusOr<v1::CheckpointFile> WriteShardFile(FileSystem& fs, const std::string& dir, uint64_t step,
                                                  const ShardSnapshot& snapshot);

// Makes a checkpoint of the files that all shards have written: checks that they fit together and are there,
// then writes the manifest. The caller sets the manifest's step, incarnation, model, job and files (in any
// order). If some file is a delta, the caller also sets the step of the checkpoint before as the only link of
// the chain. The rest is filled in. After OK the checkpoint is durable. After an error from syncing the
// folder the checkpoint may be there anyway. Calls `confirm` right before it writes the manifest's name
// (checkpoint_folder.h).
absl::Status CommitCheckpoint(FileSystem& fs, const std::string& dir, v1::CheckpointManifest manifest,
                              const Confirm& confirm = nullptr);

// The rows of an embedding table: `dim` values for each key. Keys may come in any order, each once.
struct ImportedRows {
  std::string table;
  uint32_t dim = 0;
  std::vector<uint64_t> keys;
  std::vector<float> values;  // keys.size() x dim
};

// Writes a checkpoint that holds weights, rows and no training: what a job takes with checkpoint.init_from,
// to begin with values that no initializer makes. `weights`: the model's tensors end to end. The checkpoint
// is DIRECTORY/step-00000000; the folder is made. AlreadyExists: it holds such a checkpoint, which stays.
// InvalidArgument: a key comes twice, or no table has such a dim.
absl::Status WriteInitialWeights(FileSystem& fs, const std::string& directory, const ModelSpec& model,
                                 absl::Span<const float> weights,
                                 const std::vector<ImportedRows>& tables = {});

}  // namespace weir
