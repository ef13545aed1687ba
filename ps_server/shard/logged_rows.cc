#include "ps_server/shard/logged_rows.h"

#include <algorithm>
#include <optional>
#include <string>

#include "absl/status/status.h"
#include "absl/strings/str_cat.h"

namespace weir {
namespace {

void AppendTable(const std::string& name, uint32_t dim, std::string& list) {
  absl::StrAppend(&list, list.empty() ? "" : ", ", name, " (dim ", dim, ")");
}

absl::Status Differ(const v1::LogSegment& segment, const ShardTables& tables) {
  std::string logged, of_job;
  for (const v1::LoggedTable& table : segment.tables()) AppendTable(table.name(), table.dim(), logged);
  for (size_t i = 0; i < tables.size(); ++i) {
    AppendTable(tables.config(i).name(), tables.config(i).dim(), of_job);
  }
  return absl::FailedPreconditionError(
      absl::StrCat("the log is of the embedding tables ", logged, "; the job's are ", of_job,
                   ". Go on with the tables that the job had, or use another checkpoint.directory"));
}

// The position of a table in the job.
std::optional<uint32_t> Find(const v1::LoggedTable& table, const ShardTables& tables) {
  for (size_t i = 0; i < tables.size(); ++i) {
    if (tables.config(i).name() == table.name() && tables.config(i).dim() == table.dim()) {
      return static_cast<uint32_t>(i);
    }
  }
  return std::nullopt;
}

}  // namespace

absl::StatusOr<LoggedRows> LoggedRows::Of(const v1::LogSegment& segment, const ShardTables& tables) {
  RowArrival::Tables in_order;
  std::vector<uint32_t> positions;
  if (segment.tables().empty()) {  // from before the field, or of a job that had none
    for (size_t i = 0; i < tables.size(); ++i) {
      *in_order.Add() = tables.config(i);
      positions.push_back(static_cast<uint32_t>(i));
    }
    return LoggedRows(std::move(in_order), std::move(positions));
  }
  if (static_cast<size_t>(segment.tables_size()) != tables.size()) return Differ(segment, tables);
  for (const v1::LoggedTable& table : segment.tables()) {
    const std::optional<uint32_t> at = Find(table, tables);
    if (!at.has_value() || std::count(positions.begin(), positions.end(), *at) > 0) {
      return Differ(segment, tables);
    }
    *in_order.Add() = tables.config(*at);
    positions.push_back(*at);
  }
  return LoggedRows(std::move(in_order), std::move(positions));
}

absl::StatusOr<PushedRows> LoggedRows::Take(const v1::PushRequest& push, absl::string_view bytes,
                                            const ShardTables& tables) const {
  absl::StatusOr<PushedRows> rows = RowsFromBytes(tables_, push, bytes);
  if (!rows.ok()) return absl::DataLossError(rows.status().message());
  for (PushedRows::OfTable& of : rows->tables) of.keys.table = positions_[of.keys.table];
  std::sort(rows->tables.begin(), rows->tables.end(),
            [](const auto& a, const auto& b) { return a.keys.table < b.keys.table; });
  if (const absl::Status status = tables.CheckKeys(*rows); !status.ok()) {
    return absl::DataLossError(status.message());
  }
  return rows;
}

}  // namespace weir
