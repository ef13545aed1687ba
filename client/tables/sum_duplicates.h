#pragma once

#include <cstddef>
#include <cstdint>
#include <vector>

#include "absl/types/span.h"

namespace weir {

// The gradient of a table's rows, as a push carries it.
struct SparseGradient {
  std::vector<uint64_t> keys;  // each once, rising
  std::vector<float> values;   // keys.size() x dim
};

// Sums the gradients of keys that occur several times: a batch looks a key up once for each of its
// occurrences, and each has a gradient. In float32, in the order of the occurrences, so that the sum has the
// same bits however the rows are then cut over shards.
//
// `keys`: in any order. `values`: keys.size() x dim.
SparseGradient SumDuplicates(absl::Span<const uint64_t> keys, absl::Span<const float> values, size_t dim);

}  // namespace weir
