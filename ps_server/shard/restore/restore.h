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

// A shard starts from a checkpoint, or from version 0, and from the records that its log holds after that.

// The position in its log from which a shard continues.
struct LogPosition {
  // The checkpoint from which the shard was restored: its step + 1, its ShardState.log_segment (0 also if the
  // checkpoint has another number of shards), and its number of shards. All 0: version 0.
  uint64_t checkpoint = 0;
  uint64_t segment = 0;
  uint32_t num_shards = 0;
};

// Opens the checkpoint that `restore` names, in the folders of this server's config. FailedPrecondition: the
// config names no such folder, or the folder holds a checkpoint of another step.
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

// Applies the log records of `store`'s shard after `position` to `store` and its tables, which must be at
// that position, in their order. A missing log is an empty one. `tables` null: the job has none, or their
// rows do not matter.
//
// DataLoss: the log does not continue from that version, or is damaged. FailedPrecondition: a job with
// another number of shards has continued from there, and only such a job can read its log; or the log is of
// another job, or of other tables than the job's.
absl::StatusOr<Replayed> ReplayLog(FileSystem& files, const std::string& directory,
                                   const v1::JobIdentity& job, uint32_t shard, uint32_t num_shards,
                                   const LogPosition& position, BlockStore& store, ShardTables* tables);

// FailedPrecondition: some log in the folder has pushes after `position`, or is of another job, so that a job
// in sync, which reads no log, cannot begin there.
absl::Status CheckNoLog(FileSystem& files, const std::string& directory, const v1::JobIdentity& job,
                        const LogPosition& position);

}  // namespace weir
