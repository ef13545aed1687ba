#pragma once

#include <cstdint>
#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "common/checkpoint/checkpoint_reader.h"
#include "common/checkpoint/table_writer.h"
#include "common/system/file_system.h"
#include "proto/checkpoint_file.pb.h"
#include "proto/job_config.pb.h"
#include "ps_server/shard/rows/shard_tables.h"
#include "ps_server/shard/versions/block_store.h"

namespace weir {

// One version of a shard's tables, pinned for a checkpoint. Made and destroyed in the shard's order.
struct PinnedTables {
  // `follows`: the step of the checkpoint that deltas may build on. `other_bytes`: the bytes of the shard's
  // other files. If deltas make all of the shard's files together at most half as large, each table whose
  // delta is the smaller file gets a delta.
  PinnedTables(std::shared_ptr<ShardTables> tables, uint64_t step, std::optional<uint64_t> follows,
               uint64_t other_bytes);

  struct OfTable {
    // The contents of the file. The fields that only writing can tell are filled in by then.
    v1::CheckpointTable record;
    // Of a delta: the keys that were removed.
    std::vector<RecordChanges::Keys> removed_rows, removed_counters;
  };
  std::shared_ptr<ShardTables> tables;
  std::vector<OfTable> files;  // by table
  std::unique_ptr<ShardTables::Pinned> pinned;
};

// Where the rows of a shard are written, and how the writer gets at them.
struct TableFiles {
  FileSystem* files = nullptr;
  std::string directory;  // of all checkpoints
  uint64_t step = 0;
  TableWriter::Shard shard;
  // Runs a function in the shard's order, and waits for its end: it copies rows for about a millisecond.
  std::function<void(const std::function<void()>&)> in_order;
  // Whether the files are still wanted.
  std::function<bool()> wanted;
};

// Writes a file for each table, durably, and blocks until then, while the shard continues to update the
// tables. Must not be called in the shard's order.
absl::StatusOr<std::vector<v1::CheckpointTable>> WriteTables(const PinnedTables& from, const TableFiles& to);

// Makes the tables of a job's shard, at version 0. `parts`: of a step, in sync. Null: the job has no tables.
absl::StatusOr<std::shared_ptr<ShardTables>> NewTables(const v1::JobConfig& config,
                                                       const BlockStore::Options& shard, uint32_t parts);

// Fills new tables, which no update has changed. `tables` null: the job has none. To continue the job
// (`weights_only` false) the tables get the checkpoint's contents and version. With weights alone, each row
// gets its values from the checkpoint, the slots of a new row, and the age of version 0; no key is counted.
// If the next checkpoint may build on this one (the job continues, on as many shards), the tables note from
// now on what changes (ShardTables::Saved). FailedPrecondition: the tables differ
// (CheckpointReader::CheckTables).
absl::Status LoadTables(const CheckpointReader& reader, bool weights_only, uint32_t shard,
                        uint32_t num_shards, ShardTables* tables);

}  // namespace weir
