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
#include "ps_server/shard/rows/shard_tables.h"
#include "ps_server/shard/versions/block_store.h"

namespace weir {

// The folder of a shard's log, in the job's folder of checkpoints.
std::string LogFolder(const std::string& directory, uint32_t shard, uint32_t num_shards);

// A shard starts from a checkpoint or from version 0, and from the records that its log holds after that.

// The position in its log from which a shard continues.
struct LogPosition {
  // All 0: version 0. Otherwise of the checkpoint from which the shard was restored: its step + 1, its
  // ShardState.log_segment (0 if its number of shards differs), and its number of shards.
  uint64_t checkpoint = 0;
  uint64_t segment = 0;
  uint32_t num_shards = 0;
};

// Opens the checkpoint that `restore` names, in the folders of this server's config. FailedPrecondition: the
// config does not name the folder, or the folder holds a checkpoint of a different step.
absl::StatusOr<CheckpointReader> OpenRestored(FileSystem& files, const v1::CheckpointConfig& config,
                                              const v1::Restore& restore);

// Reads a checkpoint into a version of `store`, and the rest of its state into `state` and `position`.
absl::Status LoadCheckpoint(const CheckpointReader& reader, bool weights_only, uint32_t shard,
                            uint32_t num_shards, const BlockStore& store, ShardVersion& version,
                            v1::ShardState* state, LogPosition* position);

struct Replayed {
  // Without their gradients.
  std::vector<v1::LoggedPush> records;
  LogEnd end;
};

// Applies the log's records after `position`, in their order, to `store` and `tables`, which must be at that
// position. A missing log counts as empty. `tables` null: the job has none, or their rows do not matter.
//
// DataLoss: the log does not continue from that version, or is damaged. FailedPrecondition: the log is of a
// different job, or of tables that differ from the job's. Or a job with a different number of shards has
// continued from there, so that only a job with that number can read the log.
absl::StatusOr<Replayed> ReplayLog(FileSystem& files, const std::string& directory,
                                   const v1::JobIdentity& job, uint32_t shard, uint32_t num_shards,
                                   const LogPosition& position, BlockStore& store, ShardTables* tables);

// For a job in sync, which reads no log. FailedPrecondition: the job cannot begin at `position`, because a
// log in the folder has pushes after it, or is of a different job.
absl::Status CheckNoLog(FileSystem& files, const std::string& directory, const v1::JobIdentity& job,
                        const LogPosition& position);

}  // namespace weir
