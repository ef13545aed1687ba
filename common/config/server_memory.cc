#include "common/config/server_memory.h"

#include <algorithm>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "common/codec/block_codec.h"
#include "common/codec/topk_codec.h"
#include "common/config/job_config.h"
#include "common/config/optimizer_slots.h"
#include "common/config/written_text.h"
#include "common/model/partition.h"
#include "common/protocol/mode_traits.h"

namespace weir {

std::string MemoryText(double bytes) {
  return bytes < 1 << 30 ? absl::StrFormat("%.1f MiB", bytes / (1 << 20))
                         : absl::StrFormat("%.1f GiB", bytes / (1 << 30));
}

bool AppliesStreamed(const v1::JobConfig& config) {
  return TraitsOf(config).applies_alone && config.server().apply() == v1::ServerConfig::APPLY_STREAMED &&
         config.server().durability() != v1::ServerConfig::DURABILITY_LOG;
}

ServerMemory ServerMemoryOf(const v1::JobConfig& config, uint32_t workers) {
  ServerMemory memory;
  memory.streamed = AppliesStreamed(config);
  memory.slots = static_cast<uint32_t>(OptimizerSlots(config.optimizer()).size());
  const double version = 1 + memory.slots;
  memory.held = (memory.streamed ? 2 : 1) * version;
  if (TraitsOf(config).commits_steps) {
    memory.step = config.consistency().has_parts() ? config.consistency().parts() : workers;
    memory.arriving = memory.step;
  } else {
    memory.step = memory.streamed ? 0 : 1;
    memory.arriving = memory.streamed ? std::max<uint32_t>(workers, 1) - 1 : workers;
  }
  if (memory.streamed && workers > 1) memory.overtaken = 2;
  if (config.checkpoint().has_directory()) memory.saved = version;
  memory.chunk_bytes =
      uint64_t{workers} * config.wire().chunks_in_flight() * config.wire().chunk_kib() * 1024;
  if (IsObjectPath(config.checkpoint().directory())) memory.storage_bytes = uint64_t{16} << 20;
  return memory;
}

uint32_t ServersWithPart(const v1::JobConfig& config, int64_t elements, uint32_t servers) {
  if (config.tables_size() > 0) return servers;
  int64_t least = static_cast<int64_t>(config.server().min_shard_kib()) * 1024;
  // Partition's blocks must be at least as long as a block of a quantised push. Otherwise such a block would
  // lie on two shards, and the bits would depend on their number. Each shard has 8 of them.
  if (QuantisesPushes(config.wire())) {
    const bool topk = config.wire().push_dtype() == v1::WireConfig::TYPE_TOPK;
    const size_t values = topk ? kTopKBlockValues : kBlockValues;
    least = std::max(least, static_cast<int64_t>(8 * values * sizeof(float)));
  }
  return ShardsFor(elements, servers, least);
}

TableMemory TableMemoryOf(const v1::JobConfig& config, uint64_t servers) {
  // Beside its values a row has its key and the version of its last update, 16 bytes, and in an index 8 bytes
  // at least. An index that is about to be filled takes 21 bytes a row (docs/tables.md).
  constexpr double kLeast = 24, kMost = 37;
  TableMemory memory;
  for (const v1::TableConfig& table : config.tables()) {
    const double rows = static_cast<double>(table.max_rows()) / static_cast<double>(servers);
    const double values = sizeof(float) * static_cast<double>(TableRowValues(table));
    memory.least += rows * (values + kLeast);
    memory.most += rows * (values + kMost);
  }
  return memory;
}

uint64_t ServerBytes(const v1::JobConfig& config, uint32_t workers, int64_t elements, uint32_t servers) {
  const ServerMemory memory = ServerMemoryOf(config, workers);
  const uint32_t shards = ServersWithPart(config, elements, servers);
  // The first shard has a block more than others, if any has.
  const double weights = 4.0 * static_cast<double>(Partition(elements, shards).shard_elements(0));
  return static_cast<uint64_t>(memory.most() * weights + TableMemoryOf(config, shards).most) +
         memory.chunk_bytes + memory.storage_bytes;
}

std::string MemoryLimit::ToString() const {
  return absl::StrCat(of_config ? "server.memory_limit_mib allows " : "its machine has ", MemoryText(bytes));
}

MemoryLimit MemoryLimitOf(const v1::JobConfig& config, uint64_t machine_bytes) {
  const uint64_t limit = uint64_t{config.server().memory_limit_mib()} << 20;
  const bool of_config = limit > 0 && (machine_bytes == 0 || limit < machine_bytes);
  return {static_cast<double>(of_config ? limit : machine_bytes), of_config};
}

absl::Status CheckServerMemory(const v1::JobConfig& config, uint32_t workers, int64_t elements,
                               uint64_t servers, uint64_t machine_bytes) {
  const MemoryLimit limit = MemoryLimitOf(config, machine_bytes);
  if (limit.bytes == 0) return absl::OkStatus();
  const ServerMemory memory = ServerMemoryOf(config, workers);
  // In double, because the declared bytes may need more than 64 bits.
  const double weights = 4.0 * static_cast<double>(elements) / static_cast<double>(servers);
  const double tables = TableMemoryOf(config, servers).least;
  const double least = memory.least() * weights + tables;
  if (least <= limit.bytes) return absl::OkStatus();
  return absl::InvalidArgumentError(absl::StrCat(
      "the model has ", elements, " elements, W = ", MemoryText(weights), " on each of ", servers,
      " servers; a server needs at least ", MemoryText(least), " = ", memory.held, " W (weights and ",
      memory.slots, " slots", memory.streamed ? ", twice: streamed" : "", ")",
      memory.step > 0
          ? absl::StrCat(" + ", memory.step,
                         TraitsOf(config).commits_steps ? " W (the parts of a step)" : " W (a gradient)")
          : "",
      tables > 0 ? absl::StrCat(" + ", MemoryText(tables), " (rows of tables, as max_rows has them)") : "",
      ", and ", limit.ToString(),
      limit.of_config ? ". Raise it, or take more servers" : ". Take more servers"));
}

}  // namespace weir
