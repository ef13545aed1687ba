#include "ps_server/shard/table_files.h"

#include <algorithm>
#include <utility>

#include "absl/strings/str_cat.h"
#include "common/base/status_macros.h"
#include "common/model/key_bucket.h"

namespace weir {
namespace {

// A turn copies this many bytes of rows, and a bucket more: a fraction of a millisecond. A look at a bucket
// takes as long as so many bytes.
constexpr size_t kBytesOfTurn = 256 << 10, kBytesOfBucket = 64;

// Where a walk over the buckets of a shard, first their rows and then their counters, is.
class TableWalk {
 public:
  TableWalk(const Table& table, uint64_t version, const TableWriter::Shard& shard, bool counters)
      : table_(table), version_(version), shard_(shard), bucket_(shard.shard), counters_(counters) {}

  bool done() const { return phase_ == Phase::kDone; }

  // Adds the entries of the next buckets.
  absl::Status Step(TableWriter& writer) {
    for (size_t bytes = 0; bytes < kBytesOfTurn && !done() && !writer.due();) {
      if (phase_ == Phase::kRows) {
        WEIR_RETURN_IF_ERROR(table_.RowsAt(version_, bucket_, rows_));
        for (const Table::Row& row : rows_) writer.AddRow(row.key, row.updated, row.words);
        bytes += rows_.size() * (sizeof(Record) + table_.row_words() * sizeof(float));
      } else {
        WEIR_RETURN_IF_ERROR(table_.CountersAt(version_, bucket_, found_));
        for (const Table::Counter& one : found_) writer.AddCounter(one.key, one.updated, one.pushes);
        bytes += found_.size() * 2 * sizeof(Record);
      }
      bytes += kBytesOfBucket;
      bucket_ += shard_.num_shards;
      if (bucket_ < kKeyBuckets) continue;
      bucket_ = shard_.shard;
      phase_ = phase_ == Phase::kRows && counters_ ? Phase::kCounters : Phase::kDone;
    }
    return absl::OkStatus();
  }

 private:
  enum class Phase { kRows, kCounters, kDone };
  const Table& table_;
  const uint64_t version_;
  const TableWriter::Shard shard_;
  uint32_t bucket_;
  const bool counters_;
  Phase phase_ = Phase::kRows;
  std::vector<Table::Row> rows_;
  std::vector<Table::Counter> found_;
};

absl::StatusOr<v1::CheckpointTable> WriteTable(const PinnedTables& from, size_t index, const TableFiles& to) {
  const Table& table = from.tables->table(index);
  v1::CheckpointTable record;
  *record.mutable_table() = from.tables->config(index);
  record.set_rows(from.sizes[index].rows);
  record.set_counters(from.sizes[index].counters);
  record.set_slot_words(table.row_words() - table.dim());
  record.set_chunk_bytes(kTableChunkBytes);
  WEIR_ASSIGN_OR_RETURN(
      const std::unique_ptr<TableWriter> writer,
      TableWriter::Create(*to.files, to.directory, to.step, to.shard, index, std::move(record)));
  TableWalk walk(table, from.pinned->version(), to.shard, from.sizes[index].counters > 0);
  absl::Status status;
  while (status.ok() && !walk.done()) {
    to.in_order([&] { status = walk.Step(*writer); });
    if (!to.wanted()) status = absl::AbortedError("the shard that writes it begins anew or ends");
    if (status.ok()) status = writer->Write();
  }
  return writer->Finish(status);
}

}  // namespace

PinnedTables::PinnedTables(std::shared_ptr<ShardTables> from)
    : tables(std::move(from)), pinned(tables->Pin()) {
  for (size_t i = 0; i < tables->size(); ++i) {
    sizes.push_back({tables->table(i).rows(), tables->table(i).counters()});
  }
}

absl::StatusOr<std::vector<v1::CheckpointTable>> WriteTables(const PinnedTables& from, const TableFiles& to) {
  std::vector<v1::CheckpointTable> records;
  for (size_t i = 0; i < from.sizes.size(); ++i) {
    records.emplace_back();
    WEIR_ASSIGN_OR_RETURN(records.back(), WriteTable(from, i, to));
  }
  return records;
}

absl::Status LoadTables(const CheckpointReader& reader, bool weights_only, uint32_t shard,
                        uint32_t num_shards, uint64_t version, ShardTables* tables) {
  std::vector<v1::TableConfig> configs;
  for (size_t i = 0; tables != nullptr && i < tables->size(); ++i) configs.push_back(tables->config(i));
  WEIR_RETURN_IF_ERROR(reader.CheckTables(configs, weights_only));
  for (size_t i = 0; i < configs.size(); ++i) {
    Table& table = tables->table(i);
    WEIR_RETURN_IF_ERROR(table.RestoreVersion(weights_only ? 0 : version));
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
    WEIR_RETURN_IF_ERROR(reader.LoadTable(configs[i].name(), shard, num_shards, target));
  }
  return absl::OkStatus();
}

}  // namespace weir
