#include "ps_server/shard/table_digests.h"

#include <cstdlib>
#include <utility>

#include "common/model/key_bucket.h"
#include "common/telemetry/logging.h"

namespace weir {
namespace {

// A step takes this many bytes of rows, and a bucket more. A look at a bucket takes as long as so many.
constexpr size_t kBytesOfStep = 256 << 10, kBytesOfBucket = 64;

}  // namespace

TableDigests::TableDigests(std::shared_ptr<ShardTables> tables)
    : tables_(std::move(tables)), pinned_(tables_->Pin()) {}

void TableDigests::Step() {
  for (size_t bytes = 0; bytes < kBytesOfStep && !done();) {
    const Table& table = tables_->table(digests_.size());
    if (const absl::Status status = table.RowsAt(version(), bucket_, rows_); !status.ok()) {
      LogError("a pinned version cannot be read: ", status.message());
      std::abort();
    }
    for (const Table::Row& row : rows_) digest_.AddRow(row.key, row.words.first(table.dim()));
    bytes += kBytesOfBucket + rows_.size() * (sizeof(Record) + table.row_words() * sizeof(float));
    if (++bucket_ < kKeyBuckets) continue;
    digests_.push_back(digest_.Finish());
    bucket_ = 0;
  }
}

}  // namespace weir
