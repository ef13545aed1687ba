#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "absl/types/span.h"
#include "common/model/key_bucket.h"
#include "common/model/model_spec.h"
#include "ps_server/table/record_store.h"
#include "ps_server/table/row_optimizer.h"

namespace weir {

// The values that a row has before its first update: a pure function of (seed, table, key, column), with the
// same bits on every CPU. So a key that has no row can be read, and a row that comes into being needs nothing
// from anywhere.
//
// Four columns share the four words of Philox(RandomKey(seed, "table " + name), key, column / 4), with u =
// word / 2^32 rounded down to 24 bits for uniform:
//
//   constant  value
//   uniform   value (2 u - 1), column c from word c mod 4
//   normal    value times TwoNormals(): columns 4k, 4k + 1 from words 0, 1, and 4k + 2, 4k + 3 from words 2,
//   3
//
// Immutable, hence thread-safe.
class InitialRows {
 public:
  // The value of `init` must be finite.
  InitialRows(uint64_t seed, const std::string& table, const Initializer& init);

  // Writes the first `dim` columns of the key's row.
  void Fill(uint64_t key, float* out, size_t dim) const;

 private:
  const Initializer init_;
  const uint64_t random_key_;
};

// The rules that decide about the rows of a table, the same on every shard. table.h says what the numbers
// mean.
struct TableRules {
  RowOptimizer optimizer;
  InitialRows initial;
  uint32_t admit_after = 0;
  uint64_t expire_after_steps = 0;
  uint64_t max_rows = 0;

  // The rows that a bucket may have; 0: any number. The quotas of all buckets sum to max_rows.
  uint64_t QuotaOf(uint32_t bucket) const {
    return max_rows / kKeyBuckets + (bucket < max_rows % kKeyBuckets ? 1 : 0);
  }
  // A bucket is swept for expired rows in every SweepPeriod()-th version.
  uint64_t SweepPeriod() const;
};

// The gradient of one part of a step for one key.
struct RowGradient {
  uint64_t hash;  // HashKey(key)
  uint64_t key;
  const char* values;  // dim float32 at any address
  uint32_t part;
};

// The version that is being made.
struct VersionStep {
  uint64_t version;
  double learning_rate;
  // By part: its weight in the sum of the gradients. The only part may have the weight 1, which changes
  // nothing.
  absl::Span<const float> weights;
};

// A 64th of a table's buckets, with all that belongs to their keys. Partitions share nothing but rules that
// do not change, so each may have a thread of its own.
//
// One thread at a time; calls of const members may run at the same time.
class alignas(64) TablePartition {
 public:
  static constexpr uint32_t kPartitions = 64, kBuckets = kKeyBuckets / kPartitions;

  // The partition of the key with this hash, and the first bucket of a partition: partitions are ranges.
  static uint32_t Of(uint64_t hash) { return BucketOfHash(hash) / kBuckets; }
  static uint32_t FirstBucket(uint32_t partition) { return partition * kBuckets; }

  // `rules` outlives the partition. `pools`: the memory of all records of the table.
  TablePartition(const TableRules& rules, uint32_t partition, const std::shared_ptr<RecordPools>& pools);
  TablePartition(const TablePartition&) = delete;
  TablePartition& operator=(const TablePartition&) = delete;

  // The rows: words as of RowOptimizer.
  const RecordStore& rows() const { return rows_; }
  // The keys that are not admitted yet: one word, the pushes that counted, a uint32.
  const RecordStore& counters() const { return counters_; }
  static uint32_t PushesOf(const Record& counter);

  // Takes a key's gradients, in the order of their parts, into the version in the making. `likely`: what
  // rows().now().Likely() gave for the key in this version. A key has one call in a version.
  void Update(absl::Span<const RowGradient> gradients, Record* likely, const VersionStep& step);
  // A key's row or count as it was saved. The partition has had no update, and the key has none. `words`: of
  // a row.
  void RestoreRow(uint64_t hash, uint64_t key, uint64_t updated, const float* words);
  void RestoreCounter(uint64_t hash, uint64_t key, uint64_t updated, uint32_t pushes);
  // The version has all of its gradients: holds the quotas, and removes what has expired.
  void Finish(const VersionStep& step);

  // As RecordStore.
  void Pin(uint64_t version, const std::shared_ptr<RecordPools>& pools);
  void Unpin(uint64_t version);

  // RecordStore::NoteChanges() of the rows and of the counters.
  std::pair<std::optional<RecordChanges>, std::optional<RecordChanges>> NoteChanges(uint64_t version) {
    return {rows_.NoteChanges(version), counters_.NoteChanges(version)};
  }

  // Rows that were made, and that went, since the partition was made.
  uint64_t admitted() const { return admitted_; }
  uint64_t expired() const { return expired_; }
  uint64_t evicted() const { return evicted_; }
  size_t bytes() const;  // without former states
  size_t former_bytes() const { return rows_.former_bytes() + counters_.former_bytes(); }

 private:
  // A row by its age: rows that were updated longest ago come first, rows of one version by key.
  struct Aged {
    uint64_t updated, key;
    bool operator<(const Aged& other) const {
      return updated != other.updated ? updated < other.updated : key < other.key;
    }
  };

  // Counts a key that has no row in as many pushes as it takes to be admitted, at most `pushes`. Returns how
  // many: their gradients are dropped.
  size_t CountPushes(uint64_t hash, uint64_t key, size_t pushes, uint64_t version);
  // After a row was made.
  void NoteQuota(uint64_t hash);
  void EvictTo(uint64_t quota, uint32_t bucket);
  // Removes the records of a bucket that are too old for `version`; returns how many.
  size_t Expire(RecordStore& store, uint32_t bucket, uint64_t version);

  const TableRules& rules_;
  const uint32_t partition_;
  RecordStore rows_;
  RecordStore counters_;
  uint64_t admitted_ = 0, expired_ = 0, evicted_ = 0;

  // Buckets that got rows beyond their quota in this version, or when the partition was restored.
  std::vector<uint32_t> over_quota_;
  // By bucket, if there are quotas: some rows that were the oldest when the bucket was last searched, oldest
  // last. A row that is updated no longer fits what is remembered of it, so the oldest one that still fits is
  // the bucket's oldest row.
  std::vector<std::vector<Aged>> oldest_;
  // Memory of calls.
  std::vector<float> sum_;
  std::vector<Aged> aged_;
};

}  // namespace weir
