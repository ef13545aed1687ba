#pragma once

#include <cstddef>
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

// One version of a shard's tables, pinned for the checkpoint of a step. Made and released in the shard's
// order.
struct PinnedTables {
  // `follows`: the step of the checkpoint that deltas may build on. `other_bytes`: what else the shard writes
  // for each checkpoint, which a delta must make up for, too: a table has one where all of the shard's files
  // together become less than half as large by that.
  PinnedTables(std::shared_ptr<ShardTables> tables, uint64_t step, std::optional<uint64_t> follows,
               uint64_t other_bytes);

  struct OfTable {
    // What the file has; the rest is filled in when it is written.
    v1::CheckpointTable record;
    // Of a delta: the keys that have gone.
    std::vector<RecordChanges::Keys> removed_rows, removed_counters;
  };
  std::shared_ptr<ShardTables> tables;
  std::vector<OfTable> files;  // by table
  std::unique_ptr<ShardTables::Pinned> pinned;
};

// How the rows get from the shard into files.
struct TableFiles {
  FileSystem* files = nullptr;
  std::string directory;  // of all checkpoints
  uint64_t step = 0;
  TableWriter::Shard shard;
  // Runs a function in the shard's order, and waits until it has run. Each copies some rows, for at most
  // about a millisecond.
  std::function<void(const std::function<void()>&)> in_order;
  // False: nobody waits for the files any more.
  std::function<bool()> wanted;
};

// Writes a file for each table, durably, while updates go on; blocks meanwhile. Not in the shard's order.
absl::StatusOr<std::vector<v1::CheckpointTable>> WriteTables(const PinnedTables& from, const TableFiles& to);

// The tables of a job's shard, at version 0. parts: of a step, in sync. Null: the job has none.
absl::StatusOr<std::shared_ptr<ShardTables>> NewTables(const v1::JobConfig& config,
                                                       const BlockStore::Options& shard, uint32_t parts);

// Fills new tables, which no update has changed. To go on (`weights_only` false) they become those of the
// checkpoint, at their version there. With weights alone, each row has the values that
// it had, slots like a new row's, and is as old as version 0; no key is counted. From then on the tables note
// what changes (ShardTables::Saved), if the next checkpoint may build on this one: to go on, and on as many
// shards. FailedPrecondition: the tables differ (CheckpointReader::CheckTables). `tables` null: the job has
// none.
absl::Status LoadTables(const CheckpointReader& reader, bool weights_only, uint32_t shard,
                        uint32_t num_shards, ShardTables* tables);

}  // namespace weir
