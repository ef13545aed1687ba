#include "ps_server/shard/rows/table_report.h"

#include <algorithm>
#include <cstdlib>
#include <utility>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "common/base/status_macros.h"
#include "common/config/optimizer_slots.h"
#include "common/model/key_bucket.h"
#include "common/telemetry/logging.h"

namespace weir {
namespace {

constexpr size_t kHottest = 16;
// Limits of one call of ReadRows.
constexpr size_t kMostKeys = 1000;
constexpr size_t kMostBytes = 2 << 20;

// Returns the table's position; tables.size(): there is no table of this name.
size_t Find(const ShardTables& tables, const std::string& name) {
  size_t i = 0;
  while (i < tables.size() && tables.config(i).name() != name) ++i;
  return i;
}

}  // namespace

TableDigests::TableDigests(std::shared_ptr<ShardTables> tables)
    : tables_(std::move(tables)), pinned_(tables_->Pin()), bucket_(tables_->shard()) {}

void TableDigests::Step() {
  for (size_t bytes = 0; bytes < kBytesOfTurn && !done();) {
    const Table& table = tables_->table(digests_.size());
    if (const absl::Status status = table.RowsAt(version(), bucket_, rows_); !status.ok()) {
      LogError("a pinned version cannot be read: ", status.message());
      std::abort();
    }
    for (const Table::Row& row : rows_) digest_.AddRow(row.key, row.words.first(table.dim()));
    bytes += kBytesOfBucket + rows_.size() * (sizeof(Record) + table.row_words() * sizeof(float));
    bucket_ += tables_->num_shards();
    if (bucket_ < kKeyBuckets) continue;
    digests_.push_back(digest_.Finish());
    bucket_ = tables_->shard();
  }
}

void TableReport::SetTables(std::shared_ptr<ShardTables> tables) {
  digests_ = nullptr;
  tables_ = std::move(tables);
  Update();
}

void TableReport::Update() {
  std::vector<Table::Stats> stats;
  for (size_t i = 0; tables_ != nullptr && i < tables_->size(); ++i) {
    stats.push_back(tables_->table(i).stats());
  }
  MutexLock lock(mutex_);
  stats_ = std::move(stats);
}

std::vector<Table::Stats> TableReport::stats() const {
  MutexLock lock(mutex_);
  return stats_;
}

uint64_t TableReport::bytes() const {
  uint64_t bytes = 0;
  for (const Table::Stats& of : stats()) bytes += of.bytes;
  return bytes;
}

bool TableReport::BeginDigests() {
  if (tables_ == nullptr || (digests_ != nullptr && digests_->version() == tables_->version())) return false;
  digests_ = std::make_unique<TableDigests>(tables_);
  return true;
}

void TableReport::Describe(v1::ShardStats* stats) const {
  for (size_t i = 0; tables_ != nullptr && i < tables_->size(); ++i) {
    const Table::Stats of = tables_->table(i).stats();
    v1::TableStats& out = *stats->add_tables();
    out.set_rows(of.rows);
    out.set_bytes(of.bytes);
    out.set_former_bytes(of.former_bytes);
    out.set_keys_counted(of.counters);
    out.set_admitted(of.admitted);
    out.set_expired(of.expired);
    out.set_evicted(of.evicted);
    for (const HotKeys::Key& hot : tables_->table(i).hot_keys().Hottest(kHottest)) {
      v1::HotKey& key = *out.add_hottest();
      key.set_key(hot.key);
      key.set_share(hot.share);
    }
  }
  if (digests_ != nullptr && digests_->done() && digests_->version() == tables_->version()) {
    for (const std::string& digest : digests_->digests()) stats->add_table_digests(digest);
  }
}

absl::StatusOr<v1::ReadRowsReply> TableReport::Read(const v1::ReadRowsRequest& request) const {
  if (tables_ == nullptr) return absl::NotFoundError("table: the job has no embedding tables");
  const ShardTables& tables = *tables_;
  const size_t index = Find(tables, request.table());
  if (index == tables.size()) {
    std::vector<std::string> names;
    for (size_t i = 0; i < tables.size(); ++i) names.push_back(tables.config(i).name());
    return absl::NotFoundError(
        absl::StrCat("table: the job has no '", request.table(), "'; it has ", absl::StrJoin(names, ", ")));
  }
  const Table& table = tables.table(index);
  const std::vector<uint64_t> keys(request.keys().begin(), request.keys().end());
  const size_t most = std::min(kMostKeys, kMostBytes / (table.row_words() * sizeof(float)));
  if (keys.size() > most) {
    return absl::InvalidArgumentError(absl::StrCat("keys: got ", keys.size(), "; of table '", request.table(),
                                                   "' at most ", most, " are read in one call"));
  }
  std::vector<float> values(keys.size() * table.dim());
  WEIR_RETURN_IF_ERROR(table.Read(keys, values.data()));
  v1::ReadRowsReply reply;
  for (size_t i = 0; i < keys.size(); ++i) {
    v1::RowState& out = *reply.add_rows();
    out.set_key(keys[i]);
    out.set_version(table.version());
    const float* const first = values.data() + i * table.dim();
    out.mutable_values()->Add(first, first + table.dim());
    if (const auto row = table.FindRow(keys[i]); row.has_value()) {
      out.set_exists(true);
      out.set_updated(row->updated);
      if (request.slots()) AddRowSlots(tables.config(index), row->words.subspan(table.dim()), &out);
    } else if (const auto counter = table.FindCounter(keys[i]); counter.has_value()) {
      out.set_updated(counter->updated);
      out.set_pushes_counted(counter->pushes);
    }
  }
  return reply;
}

}  // namespace weir
