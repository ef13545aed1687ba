#include "cli/report/table_text.h"

#include <cstdint>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "absl/strings/str_join.h"
#include "cli/report/format.h"

namespace weir {
namespace {

std::string Known(bool known, uint64_t count) { return known ? FormatCount(count) : "-"; }

// "617 618": rows of each shard.
std::string RowsByShard(const v1::TableStatus& table) {
  return absl::StrJoin(table.shards(), " ", [](std::string* out, const v1::TableStats& shard) {
    absl::StrAppend(out, FormatCount(shard.rows()));
  });
}

std::string Numbers(const google::protobuf::RepeatedField<float>& values) {
  return absl::StrJoin(values, " ",
                       [](std::string* out, float value) { absl::StrAppendFormat(out, "%.9g", value); });
}

std::string Standing(const v1::RowState& row) {
  const std::string of = row.has_version() ? absl::StrCat(" of ", FormatCount(row.version())) : "";
  if (row.exists()) return absl::StrCat("updated in version ", FormatCount(row.updated()), of);
  const std::string what = row.values_size() > 0 ? "no row, initial values" : "no row";
  if (!row.has_updated()) return what;
  return absl::StrCat(what, "; ", FormatCount(row.pushes_counted()), " pushes counted, the last in version ",
                      FormatCount(row.updated()), of);
}

}  // namespace

std::string TableStatsReport(const std::vector<v1::TableStatus>& tables) {
  Table report({"table", "dim", "rows", "bytes", "counted keys", "admitted", "expired", "evicted",
                "rows of each shard"});
  report.AlignLeft(8);
  std::string hottest;
  for (const v1::TableStatus& table : tables) {
    const v1::TableStats& all = table.all();
    report.AddRow({Printable(table.name()), absl::StrCat(table.dim()), FormatCount(all.rows()),
                   FormatBytes(all.bytes()), FormatCount(all.keys_counted()),
                   Known(all.has_admitted(), all.admitted()), Known(all.has_expired(), all.expired()),
                   Known(all.has_evicted(), all.evicted()), RowsByShard(table)});
    if (all.hottest_size() == 0) continue;
    absl::StrAppend(&hottest, "\nhottest keys of ", Printable(table.name()), ", by estimate:\n");
    Table keys({"key", "in pushes"});
    for (const v1::HotKey& key : all.hottest()) {
      keys.AddRow({absl::StrCat(key.key()), FormatPercent(key.share())});
    }
    absl::StrAppend(&hottest, keys.ToString());
  }
  return absl::StrCat(report.ToString(), hottest);
}

std::string RowsReport(const v1::ReadRowsReply& rows) {
  std::string out;
  for (const v1::RowState& row : rows.rows()) {
    absl::StrAppend(&out, row.key(), ": ", Standing(row), "\n");
    if (row.values_size() > 0) absl::StrAppend(&out, "  ", Numbers(row.values()), "\n");
    for (const v1::RowSlot& slot : row.slots()) {
      absl::StrAppend(&out, "  ", Printable(slot.name()), ": ", Numbers(slot.values()), "\n");
    }
  }
  return out;
}

}  // namespace weir
