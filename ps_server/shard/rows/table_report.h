#pragma once

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

// The digests of one version of a shard's tables, some buckets at a time. All in the shard's order.
class TableDigests {
 public:
  // Pins the newest version.
  explicit TableDigests(std::shared_ptr<ShardTables> tables);

  uint64_t version() const { return pinned_->version(); }
  bool done() const { return digests_.size() == tables_->size(); }
  // Adds the next buckets, for a fraction of a millisecond.
  void Step();
  // The digests by table, once done().
  const std::vector<std::string>& digests() const { return digests_; }

 private:
  const std::shared_ptr<ShardTables> tables_;
  const std::unique_ptr<ShardTables::Pinned> pinned_;
  std::vector<std::string> digests_;
  // The digest of the next table, up to this bucket of the shard.
  TableDigest digest_;
  uint32_t bucket_;
  std::vector<Table::Row> rows_;
};

// Reports on a shard's embedding tables for people and tools. Used in the shard's order.
class TableReport {
 public:
  // An incarnation of the shard begins with these tables, or ends. Null: there are no tables.
  void SetTables(std::shared_ptr<ShardTables> tables);

  // Renews the statistics that stats() returns.
  void Update();
  // The tables' statistics, in the tables' order. Empty: nothing is installed. Any thread.
  std::vector<Table::Stats> stats() const;
  uint64_t bytes() const;

  // Begins the digests of the newest version. Returns false if they were begun before, or without tables.
  bool BeginDigests();
  // Whether digests are begun and not whole. StepDigests() computes some of them.
  bool digesting() const { return digests_ != nullptr && !digests_->done(); }
  void StepDigests() { digests_->Step(); }

  // Fills ShardStats.tables, and table_digests once they are whole.
  void Describe(v1::ShardStats* stats) const;
  // The answer to ParameterServer.ReadRows, with its errors.
  absl::StatusOr<v1::ReadRowsReply> Read(const v1::ReadRowsRequest& request) const;

 private:
  std::shared_ptr<ShardTables> tables_;
  // Made at the job's end. Null: the coordinator has not asked for them.
  std::unique_ptr<TableDigests> digests_;
  mutable Mutex mutex_;
  std::vector<Table::Stats> stats_ ABSL_GUARDED_BY(mutex_);
};

}  // namespace weir
