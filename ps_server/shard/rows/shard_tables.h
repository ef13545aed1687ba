#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <optional>
#include <utility>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/types/span.h"
#include "common/threads/thread_pool.h"
#include "google/protobuf/repeated_field.h"
#include "proto/job_config.pb.h"
#include "ps_server/optimizer/schedule.h"
#include "ps_server/shard/rows/row_arrival.h"
#include "ps_server/shard/rows/row_memory.h"
#include "ps_server/table/table.h"

namespace weir {

// The rows of one part of a commit, or of a push, and the part's weight in the mean.
struct WeightedRows {
  const PushedRows* rows = nullptr;  // null, or of no table: a part without rows
  uint64_t examples = 1;
};

// What the rows of a table begin with (InitialRows).
Initializer InitializerOf(const v1::TableInit& init);

// A walk over the buckets of tables, in turns of the shard's queue, reads about this many bytes of rows in a
// turn: a fraction of a millisecond. A look at a bucket takes as long as so many bytes.
inline constexpr size_t kBytesOfTurn = 256 << 10, kBytesOfBucket = 64;

// A shard's embedding tables, in the order of JobConfig.tables: what BlockStore is for the dense weights.
// Each update makes a version of all tables, also of those without a gradient in it: the dense weights'
// version, unless rows take effect as the parts of a step arrive (consistency.tables "async").
//
// One thread at a time uses it, in the shard's order; what says so may be called on any thread.
class ShardTables : public std::enable_shared_from_this<ShardTables> {
 public:
  struct Options {
    // The job's; at least one.
    google::protobuf::RepeatedPtrField<v1::TableConfig> tables;
    uint64_t seed = 1;
    uint32_t shard = 0;
    uint32_t num_shards = 1;
    // For the schedules, as in BlockStore::Options.
    uint64_t total_steps = 1;
    uint32_t pushes_per_step = 1;
    // Checkpoints may have changes alone (checkpoint.table_deltas).
    bool notes_changes = false;
    // Outlive the tables.
    const Kernels* kernels = nullptr;
    ThreadPool* threads = nullptr;
  };

  // Version 0. InvalidArgument: as Table::Create().
  static absl::StatusOr<std::shared_ptr<ShardTables>> Create(const Options& options);

  // InvalidArgument: a key of another shard; names table and key. Any thread.
  absl::Status CheckKeys(const PushedRows& rows) const;

  // Makes the next version from the parts of a commit, in their order, or from one push. Parts may be none.
  // Requires of the rows what Table::Update() does. Error: an optimizer does not take the
  // learning rate that its schedule has reached, say; some tables may have the version then, and others not.
  absl::Status Update(absl::Span<const WeightedRows> parts);
  uint64_t version() const { return tables_[0].table->version(); }

  // A version that stays readable, whatever later updates change, until it is destroyed, in the shard's
  // order. It may outlive the shard's own reference to the tables.
  class Pinned {
   public:
    ~Pinned();
    Pinned(const Pinned&) = delete;
    Pinned& operator=(const Pinned&) = delete;
    uint64_t version() const { return version_; }

   private:
    friend class ShardTables;
    explicit Pinned(std::shared_ptr<ShardTables> tables);
    const std::shared_ptr<ShardTables> tables_;
    const uint64_t version_;
  };
  std::unique_ptr<Pinned> Pin();

  // The newest version is that of the checkpoint of this step. From now on the tables note what changes after
  // it; returns, by table, what was noted since the checkpoint of step `follows`. nullopt: nothing was, or it
  // is not known.
  using Changes = std::vector<std::optional<Table::Changes>>;
  Changes Saved(uint64_t step, std::optional<uint64_t> follows);

  // The rows of these keys, in their order, at the newest version, or at a pinned one, in memory of `memory`.
  // InvalidArgument: a key of another shard. ResourceExhausted: there is no memory for them.
  absl::StatusOr<std::shared_ptr<const ReadRows>> Read(const RowKeys& keys, RowMemory& memory,
                                                       const Pinned* at = nullptr) const;

  // What is kept for pinned versions, of all tables.
  uint64_t former_bytes() const;

  // The tables have the buckets b of which b mod num_shards() is shard().
  uint32_t shard() const { return shard_; }
  uint32_t num_shards() const { return num_shards_; }
  size_t size() const { return tables_.size(); }
  const v1::TableConfig& config(size_t table) const { return configs_[static_cast<int>(table)]; }
  Table& table(size_t table) { return *tables_[table].table; }
  const Table& table(size_t table) const { return *tables_[table].table; }

 private:
  struct Entry {
    LearningRateSchedule schedule;
    std::unique_ptr<Table> table;
  };
  ShardTables(const Options& options, std::vector<Entry> tables)
      : configs_(options.tables),
        tables_(std::move(tables)),
        shard_(options.shard),
        num_shards_(options.num_shards),
        pushes_per_step_(options.pushes_per_step),
        notes_changes_(options.notes_changes) {}

  const RowArrival::Tables configs_;
  const std::vector<Entry> tables_;
  const uint32_t shard_, num_shards_;
  const uint32_t pushes_per_step_;
  const bool notes_changes_;
  // The step of the checkpoint since which changes are noted.
  std::optional<uint64_t> saved_;
};

}  // namespace weir
