// The part of CheckpointReader for embedding tables.
#include <algorithm>
#include <memory>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "common/base/status_macros.h"
#include "common/checkpoint/checkpoint_reader.h"
#include "common/checkpoint/table_reader.h"
#include "common/model/key_bucket.h"

namespace weir {
namespace {

using Columns = TableReader::Columns;

std::string KindOf(const v1::TableConfig& table) {
  return v1::TableOptimizer::Kind_Name(table.optimizer().type());
}

std::string InitOf(const v1::TableConfig& table) {
  return absl::StrCat(v1::TableInit::Kind_Name(table.init().type()), " ", table.init().value());
}

// "" or the first difference between two tables of one name.
std::string Difference(const v1::TableConfig& expected, const v1::TableConfig& got, bool weights_only) {
  const auto say = [](absl::string_view field, const auto& a, const auto& b) {
    return absl::StrCat(field, ": expected ", a, ", got ", b);
  };
  if (expected.dim() != got.dim()) return say("dim", expected.dim(), got.dim());
  if (weights_only) return "";
  if (KindOf(expected) != KindOf(got)) return say("optimizer.type", KindOf(expected), KindOf(got));
  // A key without a row reads it.
  if (InitOf(expected) != InitOf(got)) return say("init", InitOf(expected), InitOf(got));
  return "";
}

// Keeps the elements [i * width, (i + 1) * width) for which keep[i].
template <typename T>
void KeepSome(const std::vector<bool>& keep, size_t width, std::vector<T>& values) {
  if (values.empty()) return;
  size_t kept = 0;
  for (size_t i = 0; i < keep.size(); ++i) {
    if (!keep[i]) continue;
    const auto from = values.begin() + static_cast<ptrdiff_t>(i * width);
    std::copy(from, from + static_cast<ptrdiff_t>(width),
              values.begin() + static_cast<ptrdiff_t>(kept++ * width));
  }
  values.resize(kept * width);
}

void KeepThoseOf(uint32_t shard, uint32_t num_shards, const v1::CheckpointTable& table,
                 TableEntries& entries) {
  std::vector<bool> keep;
  keep.reserve(entries.keys.size());
  for (const uint64_t key : entries.keys) {
    keep.push_back(ShardOfKey(key, num_shards) == shard);
  }
  KeepSome(keep, 1, entries.keys);
  KeepSome(keep, 1, entries.updated);
  KeepSome(keep, table.table().dim(), entries.values);
  KeepSome(keep, table.slot_words(), entries.slots);
  KeepSome(keep, 1, entries.pushes);
}

}  // namespace

size_t CheckpointReader::NumTables() const {
  return manifest_.files_size() == 0 ? 0 : static_cast<size_t>(manifest_.files(0).tables_size());
}

const v1::TableConfig& CheckpointReader::TableAt(size_t index) const {
  return manifest_.files(0).tables(static_cast<int>(index)).table();
}

size_t CheckpointReader::FindTable(const std::string& name) const {
  size_t index = 0;
  while (index < NumTables() && TableAt(index).name() != name) ++index;
  return index;
}

uint64_t CheckpointReader::RowsOf(size_t index) const {
  uint64_t rows = 0;
  for (const v1::CheckpointFile& file : manifest_.files()) {
    rows += RowsOfShard(file.tables(static_cast<int>(index)));
  }
  return rows;
}

absl::Status CheckpointReader::CheckTables(const std::vector<v1::TableConfig>& tables,
                                           bool weights_only) const {
  const auto differs = [&](absl::string_view table, absl::string_view how) {
    return absl::FailedPreconditionError(absl::StrCat(
        folder_, " has other embedding tables than the job: table '", table, "'", how,
        weights_only ? "" : "; the weights and rows alone can start a new job (checkpoint.init_from)"));
  };
  for (size_t i = 0; i < NumTables(); ++i) {
    const std::string& name = TableAt(i).name();
    if (std::none_of(tables.begin(), tables.end(), [&](const auto& table) { return table.name() == name; })) {
      return differs(name, " is not one of the job");
    }
  }
  for (const v1::TableConfig& table : tables) {
    const size_t saved = FindTable(table.name());
    if (saved == NumTables()) {
      if (weights_only) continue;
      return differs(table.name(), " is missing in it");
    }
    const std::string difference = Difference(table, TableAt(saved), weights_only);
    if (!difference.empty()) return differs(table.name(), absl::StrCat(", ", difference));
  }
  return absl::OkStatus();
}

uint64_t CheckpointReader::VersionOfTable(size_t index, uint32_t shard, uint32_t num_shards) const {
  uint64_t version = 0;
  for (const v1::CheckpointFile& file : manifest_.files()) {
    if (index == NumTables() || (num_shards == manifest_.num_shards() && file.shard() != shard)) continue;
    version = std::max(version, weir::VersionOfTable(file, file.tables(static_cast<int>(index))));
  }
  return version;
}

absl::Status CheckpointReader::LoadTable(size_t index, uint32_t shard, uint32_t num_shards,
                                         const TableTarget& target) const {
  if (index == NumTables()) return absl::OkStatus();
  const bool same_shards = num_shards == manifest_.num_shards();
  TableEntries entries;
  for (const v1::CheckpointFile& file : manifest_.files()) {
    if (same_shards && file.shard() != shard) continue;
    const v1::CheckpointTable& of = file.tables(static_cast<int>(index));
    WEIR_ASSIGN_OR_RETURN(TableChain reader,
                          OpenTable(file.shard(), index, target.counters ? Columns::kAll : Columns::kValues));
    const auto take_all = [&](const auto& next, const auto& take) -> absl::Status {
      while (true) {
        WEIR_ASSIGN_OR_RETURN(const bool more, next());
        if (!more) return absl::OkStatus();
        if (!same_shards) KeepThoseOf(shard, num_shards, of, entries);
        WEIR_RETURN_IF_ERROR(take(entries));
      }
    };
    WEIR_RETURN_IF_ERROR(take_all([&] { return reader.NextRows(entries); }, target.rows));
    if (!target.counters) continue;
    entries = {};
    WEIR_RETURN_IF_ERROR(take_all([&] { return reader.NextCounters(entries); }, target.counters));
    entries = {};
  }
  return absl::OkStatus();
}

absl::StatusOr<TableChain> CheckpointReader::OpenTable(uint32_t shard, size_t index, Columns columns) const {
  WEIR_ASSIGN_OR_RETURN(const std::vector<TableFile> files,
                        FilesOfTable(folder_, manifest_, chain_, shard, index));
  return TableChain::Open(*fs_, files, columns);
}

absl::Status CheckpointReader::VerifyTables(const v1::CheckpointFile& file) const {
  TableEntries entries;
  for (size_t table = 0; table < NumTables(); ++table) {
    WEIR_ASSIGN_OR_RETURN(TableChain reader, OpenTable(file.shard(), table, Columns::kAll));
    for (bool more = true; more;) {
      WEIR_ASSIGN_OR_RETURN(more, reader.NextRows(entries));
    }
    for (bool more = true; more;) {
      WEIR_ASSIGN_OR_RETURN(more, reader.NextCounters(entries));
    }
  }
  return absl::OkStatus();
}

absl::Status CheckpointReader::AddExportedTables(std::vector<StoredTensor>& tensors) const {
  for (size_t i = 0; i < NumTables(); ++i) {
    const std::string& name = TableAt(i).name();
    const uint64_t rows = RowsOf(i);
    for (StoredTensor& tensor : std::vector<StoredTensor>{
             {absl::StrCat(name, "/keys"), TensorType::kI64, {rows}, 0, 0},
             {absl::StrCat(name, "/values"), TensorType::kF32, {rows, TableAt(i).dim()}, 0, 0}}) {
      if (std::any_of(tensors.begin(), tensors.end(),
                      [&](const StoredTensor& other) { return other.name == tensor.name; })) {
        return absl::FailedPreconditionError(absl::StrCat(folder_, ": the model has a tensor '", tensor.name,
                                                          "', which table '", name, "' needs in an export"));
      }
      tensors.push_back(std::move(tensor));
    }
  }
  return absl::OkStatus();
}

absl::Status CheckpointReader::ExportTables(SafetensorsWriter& writer) const {
  TableEntries entries;
  for (size_t i = 0; i < NumTables(); ++i) {
    // All keys come before all values, so the files are read twice, their keys alone at first.
    for (const Columns columns : {Columns::kKeys, Columns::kValues}) {
      for (const v1::CheckpointFile& file : manifest_.files()) {
        WEIR_ASSIGN_OR_RETURN(TableChain reader, OpenTable(file.shard(), i, columns));
        while (true) {
          WEIR_ASSIGN_OR_RETURN(const bool more, reader.NextRows(entries));
          if (!more) break;
          WEIR_RETURN_IF_ERROR(
              columns == Columns::kValues
                  ? writer.Append(entries.values)
                  : writer.Append(absl::string_view(reinterpret_cast<const char*>(entries.keys.data()),
                                                    entries.keys.size() * sizeof(uint64_t))));
        }
      }
    }
  }
  return absl::OkStatus();
}

}  // namespace weir
