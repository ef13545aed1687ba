#pragma once

#include <cstddef>
#include <cstdint>
#include <deque>
#include <map>
#include <optional>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/types/span.h"
#include "common/model/key_bucket.h"
#include "common/model/model_spec.h"
#include "common/threads/thread.h"
#include "ps_server/table/hot_keys.h"
#include "ps_server/table/row_optimizer.h"
#include "ps_server/table/table_partition.h"

namespace weir {

// One shard's rows of an embedding table: what BlockStore is for dense weights. docs/tables.md has the
// design.
//
// A key (64 bits, any value) has a *row*, of `dim` values and the optimizer's slots, from the first of its
// pushes that counts until the row expires or is evicted. A key without a row reads its initial values, and a
// read changes nothing. An update makes the next *version* from the gradients of the rows that it names, all
// at once; rows without a gradient are not stepped.
//
// The bits that are found under a key depend on the options and on the updates, but not on the number of
// shards, on threads, or on the CPU.
//
// The shard has one Table for each table of the job, and uses them in its own order, beside its BlockStore:
//
//   - a push: Update() with the push as the only part (bounded, async); the commit of a step: Update() with
//     the step's parts in their order (sync), or each part as it arrives (consistency.tables "async"). A
//     shard that a push has no keys for calls Update() without any, so that all tables count the same
//     versions;
//   - a pull: Read() into the answer's memory;
//   - a reader or a checkpoint: Pin(), any number of ReadAt() or RowsAt() while updates continue, Unpin().
//     The shard compares stats().former_bytes with its budget and makes updates wait, as for dense versions.
//
// The sorted, unique keys that Update() wants are what clients send: SumDuplicates() of
// client/tables/key_cuts.h.
//
// One thread at a time uses the table, in the shard's order. Update(), Read() and ReadAt() spread their own
// work over the pool: an update by partitions, each of which has one thread, a read by keys.
class Table {
 public:
  struct Options {
    std::string name;
    size_t dim = 1;  // at most kMaxDim
    uint64_t seed = 1;
    uint32_t shard = 0;
    uint32_t num_shards = 1;
    Initializer init;
    v1::TableOptimizer optimizer;
    // The first so many pushes of a key count, but their gradients are dropped: the key gets a row with the
    // next one. Each part of a step is a push.
    uint32_t admit_after = 0;
    // A row that has gone without an update for at least so many versions is removed, and so is the count of
    // a key that is not admitted. Bucket b is looked at in the versions v with v = b mod min(this, 1024). 0:
    // rows stay.
    uint64_t expire_after_steps = 0;
    // Rows of the table on all shards. Each bucket has a quota, max_rows / 65,536, rounded up in the first
    // max_rows mod 65,536 buckets. A bucket beyond its quota loses rows when the version is made: those that
    // were updated longest ago, in one version those of the lowest keys. 0: any number, otherwise at least
    // 65,536.
    uint64_t max_rows = 0;
    // Outlive the table.
    const Kernels* kernels = nullptr;
    ThreadPool* threads = nullptr;
  };

  // A push's gradient of the table: for each key dim float32, in the order of the keys.
  struct Part {
    absl::Span<const uint64_t> keys;  // each once, rising; of this shard
    const void* gradients = nullptr;  // keys.size() x dim, at any address; nobody else writes to it meanwhile
    double weight = 1;                // in the mean over the parts
  };

  static constexpr size_t kMaxDim = 16384;

  // Version 0, without rows. The options must be in the ranges of proto/job_config.proto, which the config's
  // reader checks.
  explicit Table(Options options);

  // InvalidArgument: a key of another shard. Thread-safe.
  absl::Status CheckKeys(absl::Span<const uint64_t> keys) const;

  // Makes the next version: for each row that a part names, one optimizer step with the sum over the parts
  // (weight / weight of all parts) * gradient, in their order, in float32. So a part that does not name a
  // row counts for it as one of gradient 0. Parts may be none. `factor` multiplies the sum.
  // Requires that the keys of a part rise and have passed CheckKeys(), that all values of its gradients are
  // finite, and that its weight is above 0: the callers have decided so (RowArrival,
  // Incarnation::CheckHeader). InvalidArgument, and nothing has changed: a learning rate that RowOptimizer
  // does not take.
  absl::Status Update(absl::Span<const Part> parts, double learning_rate, double factor = 1);

  // Writes the values of each key, dim float32 each, in the order of the keys, which may be any, and some
  // several times. InvalidArgument: a key of another shard; `out` has any contents then.
  absl::Status Read(absl::Span<const uint64_t> keys, float* out) const;

  // The number of updates so far.
  uint64_t version() const { return version_; }
  // Keeps the newest version until as many calls of Unpin(): whatever later updates change, they keep as it
  // was. Returns version().
  uint64_t Pin();
  // FailedPrecondition: the version is not pinned.
  absl::Status Unpin(uint64_t version);

  // As Read(), at a pinned version or the newest one. FailedPrecondition: neither.
  absl::Status ReadAt(uint64_t version, absl::Span<const uint64_t> keys, float* out) const;

  // A table's rows and counters. The words are valid until the next update or Unpin().
  struct Row {
    uint64_t key;
    uint64_t updated;               // the version of its last update
    absl::Span<const float> words;  // the values and the slots, as RowOptimizer has them
  };
  struct Counter {  // of a key that is not admitted yet
    uint64_t key;
    uint64_t updated;  // the version of its last push
    uint32_t pushes;
  };
  // Replaces the content of `rows` or `counters` by what the table holds of one bucket, by rising keys, at a
  // pinned version or the newest one. `since`: only what was made or changed after this version.
  // FailedPrecondition: neither. A bucket of another shard is empty.
  absl::Status RowsAt(uint64_t version, uint32_t bucket, std::vector<Row>& rows,
                      std::optional<uint64_t> since = std::nullopt) const;
  absl::Status CountersAt(uint64_t version, uint32_t bucket, std::vector<Counter>& counters,
                          std::optional<uint64_t> since = std::nullopt) const;
  // Of the newest version.
  size_t RowsIn(uint32_t bucket) const;
  size_t CountersIn(uint32_t bucket) const;

  // The changes since a version.
  struct Changes {
    uint64_t since = 0;
    // That are there, and were made or changed after it.
    size_t rows = 0, counters = 0;
    // Keys that have no row, or no counter, and had one since; in no set order.
    std::vector<RecordChanges::Keys> removed_rows, removed_counters;
  };
  // Notes what changes after the newest version, and returns what was noted until now. nullopt: nothing was,
  // or so many keys have gone that they are not known. The notes cost nothing that grows but the keys, of
  // which there is a limit (RecordChanges).
  std::optional<Changes> NoteChanges();

  // The row, or the counter, that a key has in the newest version. A key of another shard has neither.
  std::optional<Row> FindRow(uint64_t key) const;
  std::optional<Counter> FindCounter(uint64_t key) const;

  // Gives a table of version 0, without rows, the state of another table with the same dim and optimizer, of
  // any number of shards. First comes the version, then come its rows and counters, in any order and any
  // number of calls. Then it behaves as the other would. Counts that are no longer needed, since admit_after
  // is lower by now, admit their keys with the next push.
  // InvalidArgument: a key of another shard, or one that is there already; a version after the table's; as
  // many words as no row of this table has; a counter without pushes. The table is of no use then.
  absl::Status RestoreVersion(uint64_t version);
  absl::Status RestoreRows(absl::Span<const Row> rows);
  absl::Status RestoreCounters(absl::Span<const Counter> counters);

  struct Stats {
    size_t rows = 0;
    size_t counters = 0;
    // Rows that were made, and that went, since this object was made.
    uint64_t admitted = 0, expired = 0, evicted = 0;
    size_t bytes = 0;         // of rows and counters with their indexes; without former states
    size_t former_bytes = 0;  // of what is kept for pinned versions
  };
  Stats stats() const;
  // Of the keys that updates named since this object was made.
  const HotKeys& hot_keys() const { return hot_keys_; }
  // As in stats().
  size_t former_bytes() const;
  // Of the newest version.
  size_t rows() const;
  size_t counters() const;

  size_t dim() const { return options_.dim; }
  size_t row_words() const { return rules_.optimizer.row_words(); }

 private:
  // As Read(); find(rows, hash, key, now) returns the record to read, null for initial values. `now`: what
  // rows.now() has of the key.
  template <typename Find>
  absl::Status ReadRows(absl::Span<const uint64_t> keys, float* out, const Find& find) const;
  // Fills hashes_.
  void HashParts(absl::Span<const Part> parts);
  // Fills gradients_ with the parts' rows by partition, in it by key, for a key by part. The result has where
  // each partition begins, and the end.
  std::vector<size_t> GroupByPartition(absl::Span<const Part> parts, absl::Span<const uint64_t> hashes);
  void UpdatePartitions(uint32_t first, uint32_t end, absl::Span<const size_t> begins,
                        const VersionStep& step);
  // Whether the key of this hash is of this shard.
  bool Owns(uint64_t hash) const { return ShardOfHash(hash, options_.num_shards) == options_.shard; }
  absl::Status NotOfThisShard(uint64_t key) const;
  absl::Status CheckVersion(uint64_t version) const;
  absl::Status CheckBucket(uint64_t version, uint32_t bucket) const;
  // For a row or a counter that is to be restored. `there`: the key has one.
  absl::Status CheckRestored(uint64_t key, uint64_t updated, bool there) const;

  const Options options_;
  const TableRules rules_;
  std::deque<TablePartition> partitions_;
  uint64_t version_ = 0;
  std::map<uint64_t, uint64_t> pins_;  // by version: how many
  HotKeys hot_keys_;
  // Memory of Update().
  std::vector<RowGradient> gradients_;
  std::vector<uint64_t> hashes_;
};

}  // namespace weir
