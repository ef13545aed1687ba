#include "ps_server/table/table.h"

#include <algorithm>
#include <cassert>
#include <cstring>
#include <utility>

#include "absl/strings/str_cat.h"
#include "common/base/status_macros.h"
#include "common/codec/floats.h"
#include "ps_server/table/record_map.h"

namespace weir {
namespace {

// Rows of one task of the pool.
constexpr size_t kRowsPerTask = 2048;
// An update has as many tasks for each thread, since partitions have more or less to do.
constexpr size_t kTasksPerThread = 4;

size_t Tasks(size_t rows) { return (rows + kRowsPerTask - 1) / kRowsPerTask; }

}  // namespace

Table::Table(Options options)
    : options_(std::move(options)),
      rules_{RowOptimizer(options_.optimizer, options_.dim, *options_.kernels),
             InitialRows(options_.seed, options_.name, options_.init), options_.admit_after,
             options_.expire_after_steps, options_.max_rows} {
  const auto pools = std::make_shared<RecordPools>();
  for (uint32_t p = 0; p < TablePartition::kPartitions; ++p) partitions_.emplace_back(rules_, p, pools);
}

absl::Status Table::NotOfThisShard(uint64_t key) const {
  const uint32_t bucket = BucketOfHash(HashKey(key));
  return absl::InvalidArgumentError(absl::StrCat(
      "table '", options_.name, "': key ", key, " is in bucket ", bucket, ", which is of shard ",
      ShardOfBucket(bucket, options_.num_shards), " of ", options_.num_shards, ", not ", options_.shard));
}

absl::Status Table::CheckKeys(absl::Span<const uint64_t> keys) const {
  for (const uint64_t key : keys) {
    if (!Owns(HashKey(key))) return NotOfThisShard(key);
  }
  return absl::OkStatus();
}

void Table::HashParts(absl::Span<const Part> parts) {
  size_t rows = 0;
  for (const Part& part : parts) rows += part.keys.size();
  hashes_.resize(rows);
  size_t begin = 0;
  for (const Part& part : parts) {
    assert(part.weight > 0);
    options_.threads->ParallelFor(static_cast<int64_t>(Tasks(part.keys.size())), [&](int64_t task) {
      const size_t first = static_cast<size_t>(task) * kRowsPerTask;
      const size_t end = std::min(first + kRowsPerTask, part.keys.size());
      for (size_t i = first; i < end; ++i) {
        assert(i == 0 || part.keys[i - 1] < part.keys[i]);
        hashes_[begin + i] = HashKey(part.keys[i]);
        assert(Owns(hashes_[begin + i]));
      }
    });
    assert(FirstNonFiniteAt(part.gradients, static_cast<int64_t>(part.keys.size() * options_.dim)) ==
           static_cast<int64_t>(part.keys.size() * options_.dim));
    begin += part.keys.size();
  }
}

std::vector<size_t> Table::GroupByPartition(absl::Span<const Part> parts, absl::Span<const uint64_t> hashes) {
  std::vector<size_t> begins(TablePartition::kPartitions + 1);
  for (const uint64_t hash : hashes) ++begins[TablePartition::Of(hash) + 1];
  for (size_t p = 1; p < begins.size(); ++p) begins[p] += begins[p - 1];
  gradients_.resize(hashes.size());
  std::vector<size_t> next(begins.begin(), begins.end() - 1);
  size_t row = 0;
  for (uint32_t part = 0; part < parts.size(); ++part) {
    const char* values = static_cast<const char*>(parts[part].gradients);
    for (const uint64_t key : parts[part].keys) {
      const uint64_t hash = hashes[row++];
      gradients_[next[TablePartition::Of(hash)]++] = {hash, key, values, part};
      values += options_.dim * sizeof(float);
    }
  }
  return begins;
}

void Table::UpdatePartitions(uint32_t first, uint32_t end, absl::Span<const size_t> begins,
                             const VersionStep& step) {
  if (step.weights.size() > 1) {
    for (uint32_t p = first; p < end; ++p) {
      std::sort(gradients_.begin() + begins[p], gradients_.begin() + begins[p + 1],
                [](const RowGradient& a, const RowGradient& b) {
                  return a.key != b.key ? a.key < b.key : a.part < b.part;
                });
    }
  }
  const absl::Span<const RowGradient> all =
      absl::MakeConstSpan(gradients_).subspan(begins[first], begins[end] - begins[first]);
  VisitRecords(
      all.size(), rules_.optimizer.row_words() * sizeof(float), [&](size_t i) { return all[i].hash; },
      [&](uint64_t hash) -> const RecordMap& { return partitions_[TablePartition::Of(hash)].rows().now(); },
      [&](size_t i, Record* likely) {
        if (i > 0 && all[i].key == all[i - 1].key) return;  // went with the part before
        size_t parts = 1;
        while (i + parts < all.size() && all[i + parts].key == all[i].key) ++parts;
        partitions_[TablePartition::Of(all[i].hash)].Update(all.subspan(i, parts), likely, step);
      });
  for (uint32_t p = first; p < end; ++p) partitions_[p].Finish(step);
}

absl::Status Table::Update(absl::Span<const Part> parts, double learning_rate, double factor) {
  if (const absl::Status rate = rules_.optimizer.CheckRate(learning_rate); !rate.ok()) {
    return absl::InvalidArgumentError(absl::StrCat("table '", options_.name, "': ", rate.message()));
  }
  HashParts(parts);
  double total = 0;
  size_t first = 0;
  for (const Part& part : parts) {
    total += part.weight;
    hot_keys_.Offer(part.keys, absl::MakeConstSpan(hashes_).subspan(first, part.keys.size()));
    first += part.keys.size();
  }
  std::vector<float> weights;
  for (const Part& part : parts) {
    weights.push_back(static_cast<float>(factor * (part.weight / total)));
  }
  const VersionStep step{++version_, learning_rate, weights};
  const std::vector<size_t> begins = GroupByPartition(parts, hashes_);
  // Few rows are not worth another thread, those that the sweep for expired ones looks at included.
  size_t visited = hashes_.size();
  if (options_.expire_after_steps > 0) visited += (rows() + counters()) / rules_.SweepPeriod();
  const size_t most = kTasksPerThread * static_cast<size_t>(options_.threads->threads());
  const size_t tasks = options_.threads->threads() == 1 ? 1 : std::clamp<size_t>(Tasks(visited), 1, most);
  constexpr uint32_t kAll = TablePartition::kPartitions;
  options_.threads->ParallelFor(static_cast<int64_t>(tasks), [&](int64_t task) {
    const auto begin = [&](size_t t) {
      return static_cast<uint32_t>(std::min<size_t>(t * kAll / tasks, kAll));
    };
    const size_t t = static_cast<size_t>(task);
    UpdatePartitions(begin(t), begin(t + 1), begins, step);
  });
  return absl::OkStatus();
}

absl::Status Table::Read(absl::Span<const uint64_t> keys, float* out) const {
  return ReadRows(keys, out, [](const RecordStore&, uint64_t, uint64_t, const Record* now) { return now; });
}

template <typename Find>
absl::Status Table::ReadRows(absl::Span<const uint64_t> keys, float* out, const Find& find) const {
  std::vector<absl::Status> found(Tasks(keys.size()));
  const size_t dim = options_.dim;
  options_.threads->ParallelFor(static_cast<int64_t>(found.size()), [&](int64_t task) {
    const size_t first = static_cast<size_t>(task) * kRowsPerTask;
    const absl::Span<const uint64_t> some = keys.subspan(first, kRowsPerTask);
    uint64_t hashes[kRowsPerTask];
    for (size_t i = 0; i < some.size(); ++i) {
      hashes[i] = HashKey(some[i]);
      if (!Owns(hashes[i])) {
        found[task] = NotOfThisShard(some[i]);
        return;
      }
    }
    const auto rows = [&](uint64_t hash) -> const RecordStore& {
      return partitions_[TablePartition::Of(hash)].rows();
    };
    VisitRecords(
        some.size(), dim * sizeof(float), [&](size_t i) { return hashes[i]; },
        [&](uint64_t hash) -> const RecordMap& { return rows(hash).now(); },
        [&](size_t i, const Record* likely) {
          const RecordStore& store = rows(hashes[i]);
          const Record* row = likely;
          if (row != nullptr && row->key != some[i]) row = store.now().Find(hashes[i], some[i]);
          row = find(store, hashes[i], some[i], row);
          float* const to = out + (first + i) * dim;
          if (row != nullptr) {
            std::memcpy(to, row->words(), dim * sizeof(float));
          } else {
            rules_.initial.Fill(some[i], to, dim);
          }
        });
  });
  for (const absl::Status& status : found) WEIR_RETURN_IF_ERROR(status);
  return absl::OkStatus();
}

uint64_t Table::Pin() {
  if (pins_[version_]++ == 0) {
    const auto pools = std::make_shared<RecordPools>();
    for (TablePartition& partition : partitions_) partition.Pin(version_, pools);
  }
  return version_;
}

absl::Status Table::Unpin(uint64_t version) {
  const auto pin = pins_.find(version);
  if (pin == pins_.end()) {
    return absl::FailedPreconditionError(
        absl::StrCat("table '", options_.name, "': version ", version, " is not pinned"));
  }
  if (--pin->second > 0) return absl::OkStatus();
  pins_.erase(pin);
  for (TablePartition& partition : partitions_) partition.Unpin(version);
  return absl::OkStatus();
}

absl::Status Table::CheckVersion(uint64_t version) const {
  if (version == version_ || pins_.count(version) > 0) return absl::OkStatus();
  return absl::FailedPreconditionError(absl::StrCat("table '", options_.name, "': version ", version,
                                                    " cannot be read, since it is not pinned; the newest is ",
                                                    version_));
}

absl::Status Table::ReadAt(uint64_t version, absl::Span<const uint64_t> keys, float* out) const {
  WEIR_RETURN_IF_ERROR(CheckVersion(version));
  if (version == version_) return Read(keys, out);
  return ReadRows(keys, out,
                  [version](const RecordStore& rows, uint64_t hash, uint64_t key, const Record* now) {
                    return rows.FindAt(version, hash, key, now);
                  });
}

absl::Status Table::CheckBucket(uint64_t version, uint32_t bucket) const {
  WEIR_RETURN_IF_ERROR(CheckVersion(version));
  if (bucket < kKeyBuckets) return absl::OkStatus();
  return absl::InvalidArgumentError(
      absl::StrCat("table '", options_.name, "': there is no bucket ", bucket, "; there are ", kKeyBuckets));
}

absl::Status Table::RowsAt(uint64_t version, uint32_t bucket, std::vector<Row>& rows,
                           std::optional<uint64_t> since) const {
  WEIR_RETURN_IF_ERROR(CheckBucket(version, bucket));
  rows.clear();
  partitions_[bucket / TablePartition::kBuckets].rows().ForEachAt(version, bucket, [&](const Record& row) {
    if (since.has_value() && row.updated <= *since) return;
    rows.push_back({row.key, row.updated, {row.words(), row_words()}});
  });
  std::sort(rows.begin(), rows.end(), [](const Row& a, const Row& b) { return a.key < b.key; });
  return absl::OkStatus();
}

absl::Status Table::CountersAt(uint64_t version, uint32_t bucket, std::vector<Counter>& counters,
                               std::optional<uint64_t> since) const {
  WEIR_RETURN_IF_ERROR(CheckBucket(version, bucket));
  counters.clear();
  if (options_.admit_after == 0) return absl::OkStatus();
  const RecordStore& store = partitions_[bucket / TablePartition::kBuckets].counters();
  store.ForEachAt(version, bucket, [&](const Record& counter) {
    if (since.has_value() && counter.updated <= *since) return;
    counters.push_back({counter.key, counter.updated, TablePartition::PushesOf(counter)});
  });
  std::sort(counters.begin(), counters.end(),
            [](const Counter& a, const Counter& b) { return a.key < b.key; });
  return absl::OkStatus();
}

std::optional<Table::Row> Table::FindRow(uint64_t key) const {
  const uint64_t hash = HashKey(key);
  const Record* const row = partitions_[TablePartition::Of(hash)].rows().now().Find(hash, key);
  if (row == nullptr) return std::nullopt;
  return Row{key, row->updated, {row->words(), row_words()}};
}

std::optional<Table::Counter> Table::FindCounter(uint64_t key) const {
  if (options_.admit_after == 0) return std::nullopt;
  const uint64_t hash = HashKey(key);
  const Record* const counter = partitions_[TablePartition::Of(hash)].counters().now().Find(hash, key);
  if (counter == nullptr) return std::nullopt;
  return Counter{key, counter->updated, TablePartition::PushesOf(*counter)};
}

size_t Table::RowsIn(uint32_t bucket) const {
  return partitions_[bucket / TablePartition::kBuckets].rows().now().BucketSize(bucket);
}

size_t Table::CountersIn(uint32_t bucket) const {
  if (options_.admit_after == 0) return 0;
  return partitions_[bucket / TablePartition::kBuckets].counters().now().BucketSize(bucket);
}

std::optional<Table::Changes> Table::NoteChanges() {
  Changes changes;
  bool complete = true;
  const auto take = [&](std::optional<RecordChanges> noted, size_t& touched,
                        std::vector<RecordChanges::Keys>& removed) {
    complete = complete && noted.has_value() && noted->complete();
    if (!complete) return;
    changes.since = noted->since();
    touched += noted->touched();
    if (!noted->removed().empty()) removed.push_back(std::move(*noted).TakeRemoved());
  };
  for (TablePartition& partition : partitions_) {
    auto [rows, counters] = partition.NoteChanges(version_);
    take(std::move(rows), changes.rows, changes.removed_rows);
    take(std::move(counters), changes.counters, changes.removed_counters);
  }
  if (!complete) return std::nullopt;
  return changes;
}

absl::Status Table::RestoreVersion(uint64_t version) {
  if (version_ != 0 || rows() > 0 || !pins_.empty()) {
    return absl::FailedPreconditionError(
        absl::StrCat("table '", options_.name, "': only a new table can be restored"));
  }
  version_ = version;
  return absl::OkStatus();
}

absl::Status Table::CheckRestored(uint64_t key, uint64_t updated, bool there) const {
  if (!Owns(HashKey(key))) return NotOfThisShard(key);
  if (!there && updated <= version_) return absl::OkStatus();
  return absl::InvalidArgumentError(
      absl::StrCat("table '", options_.name, "': key ", key,
                   there ? std::string(" is there twice")
                         : absl::StrCat(" was updated in version ", updated, ", after version ", version_)));
}

absl::Status Table::RestoreRows(absl::Span<const Row> rows) {
  for (const Row& row : rows) {
    const uint64_t hash = HashKey(row.key);
    TablePartition& partition = partitions_[TablePartition::Of(hash)];
    WEIR_RETURN_IF_ERROR(
        CheckRestored(row.key, row.updated, partition.rows().now().Find(hash, row.key) != nullptr));
    if (row.words.size() != row_words()) {
      return absl::InvalidArgumentError(absl::StrCat("table '", options_.name, "': the row of key ", row.key,
                                                     " has ", row.words.size(), " words, not ", row_words()));
    }
    partition.RestoreRow(hash, row.key, row.updated, row.words.data());
  }
  return absl::OkStatus();
}

absl::Status Table::RestoreCounters(absl::Span<const Counter> counters) {
  for (const Counter& counter : counters) {
    const uint64_t hash = HashKey(counter.key);
    TablePartition& partition = partitions_[TablePartition::Of(hash)];
    WEIR_RETURN_IF_ERROR(CheckRestored(counter.key, counter.updated,
                                       partition.counters().now().Find(hash, counter.key) != nullptr));
    if (counter.pushes == 0) {
      return absl::InvalidArgumentError(
          absl::StrCat("table '", options_.name, "': key ", counter.key, " has a count of 0"));
    }
    partition.RestoreCounter(hash, counter.key, counter.updated, counter.pushes);
  }
  return absl::OkStatus();
}

size_t Table::rows() const {
  size_t rows = 0;
  for (const TablePartition& partition : partitions_) rows += partition.rows().now().size();
  return rows;
}

size_t Table::counters() const {
  size_t counters = 0;
  for (const TablePartition& partition : partitions_) counters += partition.counters().now().size();
  return counters;
}

Table::Stats Table::stats() const {
  Stats stats;
  stats.rows = rows();
  stats.counters = counters();
  for (const TablePartition& partition : partitions_) {
    stats.admitted += partition.admitted();
    stats.expired += partition.expired();
    stats.evicted += partition.evicted();
    stats.bytes += partition.bytes();
  }
  stats.former_bytes = former_bytes();
  return stats;
}

size_t Table::former_bytes() const {
  size_t bytes = 0;
  for (const TablePartition& partition : partitions_) bytes += partition.former_bytes();
  return bytes;
}

}  // namespace weir
