#pragma once

#include <cstddef>
#include <cstdint>
#include <vector>

#include "absl/types/span.h"

namespace weir {

// Where each key of a batch occurs in it.
struct KeyOccurrences {
  std::vector<uint64_t> keys;  // each once, rising
  // keys[i] is at the positions positions[begin[i]] to positions[begin[i + 1] - 1] of the batch, rising.
  std::vector<uint32_t> begin;
  std::vector<uint32_t> positions;

  absl::Span<const uint32_t> of(size_t i) const {
    return absl::MakeConstSpan(positions.data() + begin[i], begin[i + 1] - begin[i]);
  }
};

// The most keys of a batch.
inline constexpr size_t kMaxBatchKeys = UINT32_MAX;

// `keys`: in any order, at most kMaxBatchKeys.
KeyOccurrences GroupByKey(absl::Span<const uint64_t> keys);

// Sums the gradients of a key that occurs several times: a batch looks a key up once for each of its
// occurrences, and each has a gradient. Sums in float32, in the order of the occurrences, so that the bits do
// not depend on how the rows are then cut over shards.
//
// `occurrences`: of the key; not empty. `gradients`: the batch's, `dim` values for each position. The sum is
// written to `sum`.
void SumDuplicates(absl::Span<const uint32_t> occurrences, const float* gradients, size_t dim, float* sum);

// SumDuplicates() for some keys of a batch, given by their positions in batch.keys. `sums` gets `dim` values
// for each key.
void SumEach(const KeyOccurrences& batch, absl::Span<const uint32_t> keys, const float* gradients, size_t dim,
             float* sums);

}  // namespace weir
