#include "client/tables/sum_duplicates.h"

#include <algorithm>
#include <utility>

namespace weir {

SparseGradient SumDuplicates(absl::Span<const uint64_t> keys, absl::Span<const float> values, size_t dim) {
  std::vector<std::pair<uint64_t, size_t>> occurrences(keys.size());
  for (size_t i = 0; i < keys.size(); ++i) occurrences[i] = {keys[i], i};
  std::sort(occurrences.begin(), occurrences.end());
  SparseGradient sum;
  sum.keys.reserve(keys.size());
  sum.values.reserve(values.size());
  for (const auto& [key, i] : occurrences) {
    const absl::Span<const float> row = values.subspan(i * dim, dim);
    if (sum.keys.empty() || sum.keys.back() != key) {
      sum.keys.push_back(key);
      sum.values.insert(sum.values.end(), row.begin(), row.end());
      continue;
    }
    float* const to = &sum.values[sum.values.size() - dim];
    for (size_t column = 0; column < dim; ++column) to[column] += row[column];
  }
  return sum;
}

}  // namespace weir
