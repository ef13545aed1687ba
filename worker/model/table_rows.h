#pragma once

#include <cstddef>
#include <cstdint>
#include <string>
#include <vector>

#include "absl/container/flat_hash_map.h"
#include "absl/types/span.h"
#include "worker/data/dataset.h"

namespace weir {

// Where an embedding layer has its rows from.
struct EmbeddingSource {
  uint32_t table = 0;  // the position in JobConfig.tables
  int64_t dim = 0;
  size_t column = 0;  // the position in Dataset::keys
};

// The rows of one table that some examples name, each key once, in the order of its first occurrence.
struct TableRows {
  uint32_t table = 0;
  int64_t dim = 0;
  std::vector<uint64_t> keys;
  absl::flat_hash_map<uint64_t, size_t> positions;  // of each key
  std::vector<float> values;                        // [keys, dim]; the reader's to fill
};

// The gradients of rows, table by table as in a list of TableRows: [keys, dim] each.
using RowGradientValues = std::vector<std::vector<float>>;

// The rows that the examples at `indexes` need for these layers, one entry for each table, by position.
std::vector<TableRows> RowsFor(absl::Span<const EmbeddingSource> sources, const Dataset& data,
                               absl::Span<const int32_t> indexes);
// The rows that all examples need.
std::vector<TableRows> RowsForAll(absl::Span<const EmbeddingSource> sources, const Dataset& data);

// The tables of the sources, each once, rising.
std::vector<uint32_t> TablesOf(absl::Span<const EmbeddingSource> sources);

}  // namespace weir
