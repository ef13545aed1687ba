#include "local/saved_rows.h"

#include <algorithm>

#include "absl/container/flat_hash_map.h"
#include "common/base/status_macros.h"
#include "ps_server/shard/rows/shard_tables.h"
#include "ps_server/table/table_partition.h"

namespace weir {

absl::Status ReadSavedRows(const CheckpointReader& reader, const v1::TableConfig& table, uint64_t seed,
                           absl::Span<const uint64_t> keys, absl::Span<float> values) {
  const size_t index = reader.FindTable(table.name()), dim = table.dim();
  const InitialRows initial(seed, table.name(), InitializerOf(table.init()));
  absl::flat_hash_map<uint64_t, size_t> places;  // of a key's first occurrence
  for (size_t i = 0; i < keys.size(); ++i) {
    if (places.emplace(keys[i], i).second) initial.Fill(keys[i], &values[i * dim], dim);
  }
  CheckpointReader::TableTarget target;
  target.rows = [&](const TableEntries& entries) {
    for (size_t i = 0; i < entries.keys.size(); ++i) {
      const auto place = places.find(entries.keys[i]);
      if (place == places.end()) continue;
      std::copy_n(&entries.values[i * dim], dim, &values[place->second * dim]);
    }
    return absl::OkStatus();
  };
  WEIR_RETURN_IF_ERROR(reader.LoadTable(index, /*shard=*/0, /*num_shards=*/1, target));
  for (size_t i = 0; i < keys.size(); ++i) {
    const size_t first = places.at(keys[i]);
    if (first != i) std::copy_n(&values[first * dim], dim, &values[i * dim]);
  }
  return absl::OkStatus();
}

}  // namespace weir
