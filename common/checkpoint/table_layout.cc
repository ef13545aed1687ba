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

uint64_t RowBytes(const v1::CheckpointTable& table) {
  return 2 * kKey + kWord * (table.table().dim() + table.slot_words());
}

uint64_t Chunks(uint64_t entries, uint64_t of_chunk) {
  return entries / of_chunk + (entries % of_chunk > 0 ? 1 : 0);
}

absl::Status CheckRange(absl::string_view field, uint64_t value, uint64_t least, uint64_t most) {
  if (value >= least && value <= most) return absl::OkStatus();
  return absl::InvalidArgumentError(
      absl::StrCat(field, ": must be in [", least, ", ", most, "], got ", value));
}

}  // namespace

std::string TableFileName(uint32_t shard, uint32_t num_shards, size_t table) {
  return absl::StrFormat("shard-%05u-of-%05u.table-%03u.safetensors", shard, num_shards, table);
}

absl::Status CheckTableSizes(const v1::CheckpointTable& table) {
  WEIR_RETURN_IF_ERROR(CheckRange("table.dim", table.table().dim(), 1, kMaxDim));
  WEIR_RETURN_IF_ERROR(CheckRange("slot_words", table.slot_words(), 0, kMaxSlotWords));
  return CheckRange("chunk_bytes", table.chunk_bytes(), 1, kMaxChunkBytes);
}

uint64_t RowsOfChunk(const v1::CheckpointTable& table) {
  return std::max<uint64_t>(1, table.chunk_bytes() / RowBytes(table));
}

uint64_t CountersOfChunk(const v1::CheckpointTable& table) {
  return std::max<uint64_t>(1, table.chunk_bytes() / (kCounterColumns * kKey));
}

size_t RowColumns(const v1::CheckpointTable& table) { return table.slot_words() > 0 ? 4 : 3; }

uint64_t CountTensors(const v1::CheckpointTable& table) {
  return Chunks(table.rows(), RowsOfChunk(table)) * RowColumns(table) +
         Chunks(table.counters(), CountersOfChunk(table)) * kCounterColumns;
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
  const auto add_chunks = [&](absl::string_view kind, uint64_t entries, uint64_t of_chunk,
                              const auto& add_rest) {
    for (uint64_t chunk = 0; chunk * of_chunk < entries; ++chunk) {
      const uint64_t n = std::min(of_chunk, entries - chunk * of_chunk);
      const std::string prefix = absl::StrFormat("%s/%05u/", kind, chunk);
      add(prefix + "keys", TensorType::kU64, {n});
      add(prefix + "updated", TensorType::kU64, {n});
      add_rest(prefix, n);
    }
  };
  add_chunks("rows", table.rows(), RowsOfChunk(table), [&](const std::string& prefix, uint64_t n) {
    add(prefix + "values", TensorType::kF32, {n, table.table().dim()});
    if (table.slot_words() > 0) add(prefix + "slots", TensorType::kF32, {n, table.slot_words()});
  });
  add_chunks("counters", table.counters(), CountersOfChunk(table),
             [&](const std::string& prefix, uint64_t n) { add(prefix + "pushes", TensorType::kU64, {n}); });
  return tensors;
}

}  // namespace weir
