#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "common/checkpoint/checkpoint_reader.h"
#include "common/system/file_system.h"
#include "proto/checkpoint.pb.h"
#include "proto/job_config.pb.h"
#include "proto/shard_control.pb.h"
#include "ps_server/push_log/push_log.h"
#include "ps_server/shard/block_store.h"

namespace weir {

// The folder of a shard's log, in the job's folder of checkpoints.
std::string LogFolder(const std::string& directory, uint32_t shard, uint32_t num_shards);

// What a shard goes on from: a checkpoint, or version 0, and what its log holds behind it.

// Where in its log a shard goes on.
struct LogPosition {
  // Of the checkpoint that it was restored from, its step + 1, and what that one says: ShardState.log_segment
  // (0 also where it is of another number of shards), and of how many shards it is. All 0: version 0.
  uint64_t checkpoint = 0;
  uint64_t segment = 0;
  uint32_t num_shards = 0;
};

// Opens the checkpoint that `restore` means, in the folders of this server's config. FailedPrecondition: the
// config names no such folder, or that holds one of another step.
absl::StatusOr<CheckpointReader> OpenRestored(FileSystem& files, const v1::CheckpointConfig& config,
                                              const v1::Restore& restore);

// Reads a checkpoint into a version of `store`, and what goes with it into `state` and `position`.
absl::Status LoadCheckpoint(const CheckpointReader& reader, bool weights_only, uint32_t shard,
                            uint32_t num_shards, const BlockStore& store, ShardVersion& version,
                            v1::ShardState* state, LogPosition* position);

struct Replayed {
  // Without their gradients.
  std::vector<v1::LoggedPush> records;
  LogEnd end;
};

// Applies what the log of `store`'s shard holds behind `position` to `store`, which is of that position, in
// its order. No log is an empty one.
//
// DataLoss: what is there does not follow on that version, or is damaged. FailedPrecondition: another number
// of shards has gone on from there, and its log only it can read.
absl::StatusOr<Replayed> ReplayLog(FileSystem& files, const std::string& directory, uint32_t shard,
                                   uint32_t num_shards, const LogPosition& position, BlockStore& store);

}  // namespace weir
