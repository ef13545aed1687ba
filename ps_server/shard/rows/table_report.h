#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "common/model/table_digest.h"
#include "common/threads/mutex.h"
#include "proto/parameter_server.pb.h"
#include "proto/shard_control.pb.h"
#include "ps_server/shard/rows/shard_tables.h"

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

// What people and tools are told of a shard's embedding tables. In the shard's order.
class TableReport {
 public:
  // An incarnation of the shard begins, with these tables, or ends. Null: there are none.
  void SetTables(std::shared_ptr<ShardTables> tables);

  // Takes the statistics anew, for stats().
  void Update();
  // Of the tables, in their order; empty: nothing is installed. Any thread.
  std::vector<Table::Stats> stats() const;
  // What the tables take.
  uint64_t bytes() const;

  // Begins the digests of the newest version. False: they are there or begun, or there are no tables.
  bool BeginDigests();
  // The digests are begun and not whole: StepDigests() takes a turn of them.
  bool digesting() const { return digests_ != nullptr && !digests_->done(); }
  void StepDigests() { digests_->Step(); }

  // Fills ShardStats.tables, and table_digests once they are whole.
  void Describe(v1::ShardStats* stats) const;
  // The answer to ParameterServer.ReadRows, with its errors.
  absl::StatusOr<v1::ReadRowsReply> Read(const v1::ReadRowsRequest& request) const;

 private:
  std::shared_ptr<ShardTables> tables_;
  // Made at the job's end. Null: nobody has asked for them.
  std::unique_ptr<TableDigests> digests_;
  mutable Mutex mutex_;
  std::vector<Table::Stats> stats_ ABSL_GUARDED_BY(mutex_);
};

}  // namespace weir
