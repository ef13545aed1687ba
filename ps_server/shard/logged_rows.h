#pragma once

#include <cstdint>
#include <utility>
#include <vector>

#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "proto/parameter_server.pb.h"
#include "proto/push_log.pb.h"
#include "ps_server/shard/row_arrival.h"
#include "ps_server/shard/shard_tables.h"

namespace weir {

// The rows in one segment of a shard's log. Records name a table by its position in the list of their segment
// (LogSegment.tables), since the job may have its tables in another order by now. A plain value.
class LoggedRows {
 public:
  // `tables`: the job's. FailedPrecondition: the segment has other tables than these.
  static absl::StatusOr<LoggedRows> Of(const v1::LogSegment& segment, const ShardTables& tables);

  // The rows of a push from its record, for the job's tables. DataLoss: the rows do not fit the
  // tables, so that they were never applied.
  absl::StatusOr<PushedRows> Take(const v1::PushRequest& push, absl::string_view bytes,
                                  const ShardTables& tables) const;

 private:
  LoggedRows(RowArrival::Tables tables, std::vector<uint32_t> positions)
      : tables_(std::move(tables)), positions_(std::move(positions)) {}

  RowArrival::Tables tables_;        // in the segment's order
  std::vector<uint32_t> positions_;  // of each, in the job
};

}  // namespace weir
