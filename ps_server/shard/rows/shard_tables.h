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
#include "common/optimizer/schedule.h"
#include "common/system/float_pool.h"
#include "common/threads/thread.h"
#include "google/protobuf/repeated_field.h"
#include "proto/job_config.pb.h"
#include "ps_server/shard/rows/row_arrival.h"
#include "ps_server/shard/versions/version_readers.h"
#include "ps_server/table/table.h"

namespace weir {

// Memory for the rows of answers. Clients on this machine can read large answers in place (SlabSource), and
// keep the buffers mapped. So these buffers are made once and reused, up to a limit for all of them. Beyond
// the limit, and for small answers, the memory is the heap's.
//
// Thread-safe. Memory may outlive this object.
class RowMemory {
 public:
  // Bytes. A smaller answer is copied in less time than a client takes to say that it has read it in place.
  static constexpr uint64_t kLeastShared = 64 << 10;
  static constexpr uint64_t kMostShared = uint64_t{256} << 20;  // of all buffers together

  explicit RowMemory(SlabSource shared);

  // Memory for this many values, uninitialized. nullptr: there is no memory.
  std::shared_ptr<float> Take(size_t values);

 private:
  // Buffers have 2^k times this many bytes.
  static constexpr uint64_t kSmallest = 1 << 20;
  static constexpr int kSizes = 6;

  using Made = absl::StatusOr<std::shared_ptr<float>>;
  // By k.
  std::vector<std::unique_ptr<FloatPool<Made>>> pools_;
};

// The rows of a push, or of one part of a commit, and their weight in the mean.
struct WeightedRows {
  const PushedRows* rows = nullptr;  // null, or of no table: a part without rows
  double weight = 1;
};

// The initializer of a table's new rows (InitialRows).
Initializer InitializerOf(const v1::TableInit& init);

// A walk over the buckets of tables takes turns of the shard's queue, and reads about kBytesOfTurn of rows in
// a turn: a fraction of a millisecond. A look at a bucket takes as long as reading kBytesOfBucket.
inline constexpr size_t kBytesOfTurn = 256 << 10, kBytesOfBucket = 64;

// A shard's embedding tables, in the order of JobConfig.tables, as BlockStore holds the dense weights. Each
// update makes a version of all tables, also of the tables without a gradient in it. This version is the
// dense weights', unless rows take effect as the parts of a step arrive (consistency.tables "async").
//
// One thread at a time uses the tables, in the shard's order, except for functions marked "Any thread".
class ShardTables : public std::enable_shared_from_this<ShardTables> {
 public:
  struct Options {
    // The job's; at least one.
    google::protobuf::RepeatedPtrField<v1::TableConfig> tables;
    uint64_t seed = 1;
    uint32_t shard = 0;
    uint32_t num_shards = 1;
    // For the schedules of the learning rates, as in BlockStore::Options.
    uint64_t total_steps = 1;
    uint32_t pushes_per_step = 1;
    // Checkpoints may hold only changes (checkpoint.table_deltas).
    bool notes_changes = false;
    // Outlive the tables.
    const Kernels* kernels = nullptr;
    ThreadPool* threads = nullptr;
  };

  // Version 0. InvalidArgument: as LearningRateSchedule::Create().
  static absl::StatusOr<std::shared_ptr<ShardTables>> Create(const Options& options);

  // InvalidArgument: a key belongs to a different shard; the message names table and key. Any thread.
  absl::Status CheckKeys(const PushedRows& rows) const;

  // Makes the next version from the parts of a commit, in their order, or from one push. There may be no
  // parts. The rows must meet the requirements of Table::Update(), which also has `factor`. Errors: for
  // example, an optimizer does not accept the learning rate that its schedule has reached. After an error
  // only some tables may have the new version.
  absl::Status Update(absl::Span<const WeightedRows> parts, double factor = 1);
  uint64_t version() const { return tables_[0].table->version(); }

  // Keeps a version readable, whatever later updates change. Must be destroyed in the shard's order, and may
  // outlive the shard's own reference to the tables.
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

  // The checkpoint of this step has the newest version. From now on the tables note what changes after it.
  // Returns, by table, the changes since the checkpoint of step `follows`; nullopt: they were not noted.
  using Changes = std::vector<std::optional<Table::Changes>>;
  Changes Saved(uint64_t step, std::optional<uint64_t> follows);

  // Reads the rows of these keys, in their order, into memory of `memory`: the rows of version `at`; null: of
  // the newest version. InvalidArgument: a key belongs to a different shard. ResourceExhausted: there is no
  // memory for the rows.
  absl::StatusOr<std::shared_ptr<const ReadRows>> Read(const RowKeys& keys, RowMemory& memory,
                                                       const Pinned* at = nullptr) const;

  // The bytes of former rows that all tables keep for pinned versions.
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
  // Changes are noted since the checkpoint of this step.
  std::optional<uint64_t> saved_;
};

}  // namespace weir
