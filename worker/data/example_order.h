#pragma once

#include <array>
#include <cstdint>
#include <vector>

#include "absl/types/span.h"

namespace weir {

// The numbers 0 .. n-1 in a random order (Fisher and Yates): a pure function of its arguments. n >= 0.
std::vector<int32_t> RandomPermutation(int32_t n, uint64_t key, uint64_t stream);

// The order in which a job sees its training examples: an endless stream of them, which depends on the seed
// only. Position p of the stream is example permutation_e[p mod n] in epoch e = p / n, and each epoch has a
// permutation of its own. Batch b of the job is the positions [b * B, (b + 1) * B), so a batch may cross the
// border of two epochs.
//
// Not thread-safe: this keeps the permutations that it made last.
class ExampleOrder {
 public:
  // examples > 0.
  ExampleOrder(int32_t examples, uint64_t seed);
  // The examples at the positions from `first` on. first >= 0.
  void Fill(int64_t first, absl::Span<int32_t> indexes);

 private:
  const std::vector<int32_t>& Permutation(int64_t epoch);

  const int32_t examples_;
  const uint64_t key_;
  // The epoch e is in slot e % 2, so that going back and forth over one border costs nothing.
  struct Slot {
    int64_t epoch = -1;
    std::vector<int32_t> permutation;
  };
  std::array<Slot, 2> slots_;
};

}  // namespace weir
