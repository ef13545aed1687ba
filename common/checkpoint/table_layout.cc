#include "common/checkpoint/table_layout.h"

#include <algorithm>
#include <utility>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "common/base/status_macros.h"

namespace weir {
namespace {

constexpr uint64_t kWord = sizeof(float), kKey = sizeof(uint64_t);
// A row's values and slots take at most this, whatever a manifest says: a reader takes as much memory.
constexpr uint64_t kMaxDim = 16384, kMaxSlotWords = 4 * kMaxDim, kMaxChunkBytes = 1 << 30;

constexpr TableSection kSections[kTableSections] = {
    TableSection::kRows, TableSection::kCounters, TableSection::kRemovedRows, TableSection::kRemovedCounters};

absl::string_view NameOf(TableSection section) {
  switch (section) {
    case TableSection::kRows:
      return "rows";
    case TableSection::kCounters:
      return "counters";
    case TableSection::kRemovedRows:
      return "removed_rows";
    case TableSection::kRemovedCounters:
      return "removed_counters";
  }
  return "";
}

uint64_t BytesOfEntry(const v1::CheckpointTable& table, TableSection section) {
  switch (section) {
    case TableSection::kRows:
      return 2 * kKey + kWord * (table.table().dim() + table.slot_words());
    case TableSection::kCounters:
      return 3 * kKey;
    case TableSection::kRemovedRows:
    case TableSection::kRemovedCounters:
      return kKey;
  }
  return 0;
}

absl::Status CheckRange(absl::string_view field, uint64_t value, uint64_t least, uint64_t most) {
  if (value >= least && value <= most) return absl::OkStatus();
  return absl::InvalidArgumentError(
      absl::StrCat(field, ": must be in [", least, ", ", most, "], got ", value));
}

}  // namespace

std::string TableFileName(uint32_t shard, uint32_t num_shards, size_t table, bool delta) {
  return absl::StrFormat("shard-%05u-of-%05u.table-%03u%s.safetensors", shard, num_shards, table,
                         delta ? ".delta" : "");
}

absl::Status CheckTableSizes(const v1::CheckpointTable& table) {
  WEIR_RETURN_IF_ERROR(CheckRange("table.dim", table.table().dim(), 1, kMaxDim));
  WEIR_RETURN_IF_ERROR(CheckRange("slot_words", table.slot_words(), 0, kMaxSlotWords));
  WEIR_RETURN_IF_ERROR(CheckRange("chunk_bytes", table.chunk_bytes(), 1, kMaxChunkBytes));
  const uint64_t most = table.has_delta_since() ? UINT64_MAX : 0;
  WEIR_RETURN_IF_ERROR(CheckRange("removed_rows", table.removed_rows(), 0, most));
  WEIR_RETURN_IF_ERROR(CheckRange("removed_counters", table.removed_counters(), 0, most));
  WEIR_RETURN_IF_ERROR(CheckRange("total_rows", table.total_rows(), most > 0 ? table.rows() : 0, most));
  return CheckRange("total_counters", table.total_counters(), most > 0 ? table.counters() : 0, most);
}

uint64_t EntriesOf(const v1::CheckpointTable& table, TableSection section) {
  switch (section) {
    case TableSection::kRows:
      return table.rows();
    case TableSection::kCounters:
      return table.counters();
    case TableSection::kRemovedRows:
      return table.removed_rows();
    case TableSection::kRemovedCounters:
      return table.removed_counters();
  }
  return 0;
}

uint64_t EntriesOfChunk(const v1::CheckpointTable& table, TableSection section) {
  return std::max<uint64_t>(1, table.chunk_bytes() / BytesOfEntry(table, section));
}

size_t ColumnsOf(const v1::CheckpointTable& table, TableSection section) {
  switch (section) {
    case TableSection::kRows:
      return table.slot_words() > 0 ? 4 : 3;
    case TableSection::kCounters:
      return 3;
    case TableSection::kRemovedRows:
    case TableSection::kRemovedCounters:
      return 1;
  }
  return 0;
}

uint64_t CountTensors(const v1::CheckpointTable& table, TableSection section) {
  const uint64_t entries = EntriesOf(table, section), of_chunk = EntriesOfChunk(table, section);
  return (entries / of_chunk + (entries % of_chunk > 0 ? 1 : 0)) * ColumnsOf(table, section);
}

uint64_t CountTensors(const v1::CheckpointTable& table) {
  uint64_t tensors = 0;
  for (const TableSection section : kSections) tensors += CountTensors(table, section);
  return tensors;
}

std::vector<StoredTensor> TensorsOfTable(const v1::CheckpointTable& table) {
  std::vector<StoredTensor> tensors;
  uint64_t offset = 0;
  const auto add = [&](std::string name, TensorType type, std::vector<uint64_t> shape) {
    uint64_t bytes = type == TensorType::kF32 ? kWord : kKey;
    for (const uint64_t d : shape) bytes *= d;
    tensors.push_back({std::move(name), type, std::move(shape), offset, bytes});
    offset += bytes;
  };
  for (const TableSection section : kSections) {
    const uint64_t entries = EntriesOf(table, section), of_chunk = EntriesOfChunk(table, section);
    for (uint64_t chunk = 0; chunk * of_chunk < entries; ++chunk) {
      const uint64_t n = std::min(of_chunk, entries - chunk * of_chunk);
      const std::string prefix = absl::StrFormat("%s/%05u/", NameOf(section), chunk);
      add(prefix + "keys", TensorType::kU64, {n});
      if (ColumnsOf(table, section) == 1) continue;
      add(prefix + "updated", TensorType::kU64, {n});
      if (section == TableSection::kCounters) {
        add(prefix + "pushes", TensorType::kU64, {n});
        continue;
      }
      add(prefix + "values", TensorType::kF32, {n, table.table().dim()});
      if (table.slot_words() > 0) add(prefix + "slots", TensorType::kF32, {n, table.slot_words()});
    }
  }
  return tensors;
}

uint64_t TableBytes(const v1::CheckpointTable& table) {
  uint64_t bytes = 0;
  for (const TableSection section : kSections)
    bytes += EntriesOf(table, section) * BytesOfEntry(table, section);
  return bytes;
}

uint64_t VersionOfTable(const v1::CheckpointFile& file, const v1::CheckpointTable& table) {
  return table.has_version() ? table.version() : file.version().count();
}

uint64_t RowsOfShard(const v1::CheckpointTable& table) {
  return table.has_delta_since() ? table.total_rows() : table.rows();
}

uint64_t CountersOfShard(const v1::CheckpointTable& table) {
  return table.has_delta_since() ? table.total_counters() : table.counters();
}

}  // namespace weir
