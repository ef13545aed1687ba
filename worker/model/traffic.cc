#include "worker/model/traffic.h"

#include <numeric>
#include <set>

namespace weir {

std::vector<TableRows> RowsFor(absl::Span<const EmbeddingSource> sources, const Dataset& data,
                               absl::Span<const int32_t> indexes) {
  std::vector<TableRows> all;
  std::set<uint32_t> tables;
  for (const EmbeddingSource& source : sources) tables.insert(source.table);
  for (const uint32_t table : tables) {
    TableRows rows;
    rows.table = table;
    std::set<size_t> columns;
    for (const EmbeddingSource& source : sources) {
      if (source.table != table) continue;
      rows.dim = source.dim;
      columns.insert(source.column);
    }
    for (const size_t c : columns) {
      const KeyColumn& column = data.keys()[c];
      for (const int32_t index : indexes) {
        const auto example = static_cast<size_t>(index);
        for (size_t i = column.begin(example); i < column.end(example); ++i) {
          const uint64_t key = column.keys[i];
          if (rows.positions.emplace(key, rows.keys.size()).second) rows.keys.push_back(key);
        }
      }
    }
    rows.values.resize(rows.keys.size() * static_cast<size_t>(rows.dim));
    all.push_back(std::move(rows));
  }
  return all;
}

std::vector<TableRows> RowsForAll(absl::Span<const EmbeddingSource> sources, const Dataset& data) {
  std::vector<int32_t> indexes(static_cast<size_t>(data.size()));
  std::iota(indexes.begin(), indexes.end(), 0);
  return RowsFor(sources, data, indexes);
}

}  // namespace weir
