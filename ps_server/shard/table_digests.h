#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "common/model/table_digest.h"
#include "ps_server/shard/shard_tables.h"

namespace weir {

// The digests of one version of a shard's tables, some buckets at a time. Made, used and destroyed in the
// shard's order.
class TableDigests {
 public:
  // Of the newest version.
  explicit TableDigests(std::shared_ptr<ShardTables> tables);

  uint64_t version() const { return pinned_->version(); }
  bool done() const { return digests_.size() == tables_->size(); }
  // Takes the next buckets, for a fraction of a millisecond.
  void Step();
  // By table, once done().
  const std::vector<std::string>& digests() const { return digests_; }

 private:
  const std::shared_ptr<ShardTables> tables_;
  const std::unique_ptr<ShardTables::Pinned> pinned_;
  std::vector<std::string> digests_;
  // Of the next table, up to this bucket of the shard's.
  TableDigest digest_;
  uint32_t bucket_;
  std::vector<Table::Row> rows_;
};

}  // namespace weir
