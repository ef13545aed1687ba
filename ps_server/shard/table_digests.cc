#include "ps_server/shard/table_digests.h"

#include <cstdlib>
#include <utility>

#include "common/model/key_bucket.h"
#include "common/telemetry/logging.h"

namespace weir {

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

}  // namespace weir
