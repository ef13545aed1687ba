#include "ps_server/shard/restore/table_files.h"

#include <algorithm>
#include <utility>

#include "absl/strings/str_cat.h"
#include "common/base/status_macros.h"
#include "common/model/key_bucket.h"
#include "common/protocol/mode_traits.h"

namespace weir {
namespace {

// A look at a row that is not copied takes as long as this many bytes, a cache line.
constexpr size_t kBytesOfLook = 64;

// The position of a walk over the buckets of a shard, first their rows and then their counters. A walk for a
// delta looks at all entries, and adds the entries that are newer than the delta's base.
class TableWalk {
 public:
  TableWalk(const Table& table, uint64_t version, const TableWriter::Shard& shard,
            const v1::CheckpointTable& record)
      : table_(table), version_(version), shard_(shard), bucket_(shard.shard) {
    if (record.has_delta_since()) since_ = record.delta_since();
    counters_ = record.counters() > 0;
    if (record.rows() == 0) NextPhase();
  }

  bool done() const { return phase_ == Phase::kDone; }

  // Adds the entries of the next buckets.
  absl::Status Step(TableWriter& writer) {
    for (size_t bytes = 0; bytes < kBytesOfTurn && !done() && !writer.due();) {
      size_t looks = 0;
      if (phase_ == Phase::kRows) {
        WEIR_RETURN_IF_ERROR(table_.RowsAt(version_, bucket_, rows_, since_));
        for (const Table::Row& row : rows_) writer.AddRow(row.key, row.updated, row.words);
        bytes += rows_.size() * (sizeof(Record) + table_.row_words() * sizeof(float));
        looks = table_.RowsIn(bucket_);
      } else {
        WEIR_RETURN_IF_ERROR(table_.CountersAt(version_, bucket_, found_, since_));
        for (const Table::Counter& one : found_) writer.AddCounter(one.key, one.updated, one.pushes);
        bytes += found_.size() * 2 * sizeof(Record);
        looks = table_.CountersIn(bucket_);
      }
      bytes += kBytesOfBucket + (since_.has_value() ? looks * kBytesOfLook : 0);
      bucket_ += shard_.num_shards;
      if (bucket_ >= kKeyBuckets) NextPhase();
    }
    return absl::OkStatus();
  }

 private:
  enum class Phase { kRows, kCounters, kDone };
  void NextPhase() {
    bucket_ = shard_.shard;
    phase_ = phase_ == Phase::kRows && counters_ ? Phase::kCounters : Phase::kDone;
  }

  const Table& table_;
  const uint64_t version_;
  const TableWriter::Shard shard_;
  uint32_t bucket_;
  std::optional<uint64_t> since_;
  bool counters_ = false;
  Phase phase_ = Phase::kRows;
  std::vector<Table::Row> rows_;
  std::vector<Table::Counter> found_;
};

// The keys in the order of a section.
std::vector<uint64_t> InOrder(const std::vector<RecordChanges::Keys>& removed) {
  std::vector<std::pair<uint32_t, uint64_t>> keys;
  for (const RecordChanges::Keys& some : removed) {
    for (const uint64_t key : some) keys.emplace_back(BucketOfHash(HashKey(key)), key);
  }
  std::sort(keys.begin(), keys.end());
  std::vector<uint64_t> sorted;
  sorted.reserve(keys.size());
  for (const auto& [bucket, key] : keys) sorted.push_back(key);
  return sorted;
}

absl::Status WriteRemoved(const std::vector<RecordChanges::Keys>& removed, TableSection section,
                          TableWriter& writer) {
  for (const uint64_t key : InOrder(removed)) {
    writer.AddRemoved(section, key);
    if (writer.due()) WEIR_RETURN_IF_ERROR(writer.Write());
  }
  return absl::OkStatus();
}

absl::StatusOr<v1::CheckpointTable> WriteTable(const PinnedTables& from, size_t index, const TableFiles& to) {
  const PinnedTables::OfTable& file = from.files[index];
  WEIR_ASSIGN_OR_RETURN(const std::unique_ptr<TableWriter> writer,
                        TableWriter::Create(*to.files, to.directory, to.step, to.shard, index, file.record));
  TableWalk walk(from.tables->table(index), from.pinned->version(), to.shard, file.record);
  absl::Status status;
  while (status.ok() && !walk.done()) {
    to.in_order([&] { status = walk.Step(*writer); });
    if (!to.wanted()) status = absl::AbortedError("the shard that writes it begins anew or ends");
    if (status.ok()) status = writer->Write();
  }
  if (status.ok()) status = WriteRemoved(file.removed_rows, TableSection::kRemovedRows, *writer);
  if (status.ok()) status = WriteRemoved(file.removed_counters, TableSection::kRemovedCounters, *writer);
  return writer->Finish(status);
}

// The record of a table's file that has all rows.
v1::CheckpointTable WholeRecord(const ShardTables& tables, size_t index) {
  const Table& table = tables.table(index);
  v1::CheckpointTable record;
  *record.mutable_table() = tables.config(index);
  record.set_rows(table.rows());
  record.set_counters(table.counters());
  record.set_slot_words(table.row_words() - table.dim());
  record.set_chunk_bytes(kTableChunkBytes);
  record.set_version(table.version());
  return record;
}

size_t CountKeys(const std::vector<RecordChanges::Keys>& keys) {
  size_t count = 0;
  for (const RecordChanges::Keys& some : keys) count += some.size();
  return count;
}

v1::CheckpointTable DeltaRecord(const v1::CheckpointTable& whole, const Table::Changes& changes) {
  v1::CheckpointTable record = whole;
  record.set_delta_since(changes.since);
  record.set_rows(changes.rows);
  record.set_counters(changes.counters);
  record.set_removed_rows(CountKeys(changes.removed_rows));
  record.set_removed_counters(CountKeys(changes.removed_counters));
  record.set_total_rows(whole.rows());
  record.set_total_counters(whole.counters());
  record.set_chunk_bytes(kDeltaChunkBytes);
  return record;
}

// Whether the tables have all counts of the checkpoint as they were. If a table no longer needs a count, the
// count is gone or lower, and no version tells that.
bool KeepsCounts(const CheckpointReader& reader, const std::vector<v1::TableConfig>& configs) {
  for (size_t i = 0; i < reader.NumTables(); ++i) {
    const v1::TableConfig& saved = reader.TableAt(i);
    for (const v1::TableConfig& config : configs) {
      if (config.name() == saved.name() && config.admit_after() < saved.admit_after()) return false;
    }
  }
  return true;
}

}  // namespace

PinnedTables::PinnedTables(std::shared_ptr<ShardTables> from, uint64_t step, std::optional<uint64_t> follows,
                           uint64_t other_bytes)
    : tables(std::move(from)), files(tables->size()), pinned(tables->Pin()) {
  ShardTables::Changes changes = tables->Saved(step, follows);
  uint64_t whole_bytes = other_bytes, bytes = other_bytes;
  std::vector<std::optional<v1::CheckpointTable>> deltas(files.size());
  for (size_t i = 0; i < files.size(); ++i) {
    files[i].record = WholeRecord(*tables, i);
    const uint64_t whole = TableBytes(files[i].record);
    if (changes[i].has_value()) deltas[i] = DeltaRecord(files[i].record, *changes[i]);
    if (deltas[i].has_value() && TableBytes(*deltas[i]) >= whole) deltas[i].reset();
    whole_bytes += whole;
    bytes += deltas[i].has_value() ? TableBytes(*deltas[i]) : whole;
  }
  if (2 * bytes > whole_bytes) return;
  for (size_t i = 0; i < files.size(); ++i) {
    if (!deltas[i].has_value()) continue;
    files[i] = {*std::move(deltas[i]), std::move(changes[i]->removed_rows),
                std::move(changes[i]->removed_counters)};
  }
}

absl::StatusOr<std::vector<v1::CheckpointTable>> WriteTables(const PinnedTables& from, const TableFiles& to) {
  std::vector<v1::CheckpointTable> records;
  for (size_t i = 0; i < from.files.size(); ++i) {
    records.emplace_back();
    WEIR_ASSIGN_OR_RETURN(records.back(), WriteTable(from, i, to));
  }
  return records;
}

absl::StatusOr<std::shared_ptr<ShardTables>> NewTables(const v1::JobConfig& config,
                                                       const BlockStore::Options& shard, uint32_t parts) {
  if (config.tables().empty()) return std::shared_ptr<ShardTables>();
  const v1::CheckpointConfig& checkpoint = config.checkpoint();
  ShardTables::Options options;
  options.tables = config.tables();
  options.seed = shard.seed;
  options.shard = shard.shard;
  options.num_shards = shard.num_shards;
  options.total_steps = shard.total_steps;
  options.pushes_per_step = TablesCountParts(config) ? std::max<uint32_t>(1, parts) : shard.pushes_per_step;
  options.notes_changes = checkpoint.has_directory() && checkpoint.table_deltas() > 0;
  options.kernels = shard.kernels;
  options.threads = shard.threads;
  return ShardTables::Create(options);
}

absl::Status LoadTables(const CheckpointReader& reader, bool weights_only, uint32_t shard,
                        uint32_t num_shards, ShardTables* tables) {
  std::vector<v1::TableConfig> configs;
  for (size_t i = 0; tables != nullptr && i < tables->size(); ++i) configs.push_back(tables->config(i));
  WEIR_RETURN_IF_ERROR(reader.CheckTables(configs, weights_only));
  for (size_t i = 0; i < configs.size(); ++i) {
    Table& table = tables->table(i);
    const size_t saved = reader.FindTable(configs[i].name());
    const uint64_t version = weights_only ? 0 : reader.VersionOfTable(saved, shard, num_shards);
    WEIR_RETURN_IF_ERROR(table.RestoreVersion(version));
    const size_t dim = table.dim(), words_of_row = table.row_words(), slots = words_of_row - dim;
    std::vector<float> words;
    std::vector<Table::Row> rows;
    std::vector<Table::Counter> counters;
    CheckpointReader::TableTarget target;
    target.rows = [&](const TableEntries& from) {
      const size_t n = from.keys.size();
      if (!weights_only && from.slots.size() != n * slots) {
        return absl::FailedPreconditionError(
            absl::StrCat("table '", configs[i].name(), "': its optimizer has ", slots,
                         " words for a row beside its values, the checkpoint ",
                         from.slots.size() / std::max<size_t>(1, n)));
      }
      words.assign(n * words_of_row, 0);
      rows.clear();
      for (size_t r = 0; r < n; ++r) {
        float* const row = words.data() + r * words_of_row;
        std::copy_n(from.values.data() + r * dim, dim, row);
        if (!weights_only) std::copy_n(from.slots.data() + r * slots, slots, row + dim);
        rows.push_back({from.keys[r], weights_only ? 0 : from.updated[r], {row, words_of_row}});
      }
      return table.RestoreRows(rows);
    };
    if (!weights_only) {
      target.counters = [&](const TableEntries& from) {
        counters.clear();
        for (size_t c = 0; c < from.keys.size(); ++c) {
          counters.push_back({from.keys[c], from.updated[c], static_cast<uint32_t>(from.pushes[c])});
        }
        return table.RestoreCounters(counters);
      };
    }
    WEIR_RETURN_IF_ERROR(reader.LoadTable(saved, shard, num_shards, target));
  }
  const bool as_saved =
      !weights_only && num_shards == reader.manifest().num_shards() && KeepsCounts(reader, configs);
  if (as_saved && tables != nullptr) tables->Saved(reader.manifest().step(), /*follows=*/std::nullopt);
  return absl::OkStatus();
}

}  // namespace weir
