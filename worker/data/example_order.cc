#include "worker/data/example_order.h"

#include <algorithm>
#include <numeric>
#include <utility>

#include "common/base/random.h"

namespace weir {

std::vector<int32_t> RandomPermutation(int32_t n, uint64_t key, uint64_t stream) {
  std::vector<int32_t> permutation(static_cast<size_t>(n));
  std::iota(permutation.begin(), permutation.end(), 0);
  RandomStream random(key, stream);
  for (uint32_t i = static_cast<uint32_t>(n); i > 1; --i) {
    std::swap(permutation[i - 1], permutation[random.NextBelow(i)]);
  }
  return permutation;
}

ExampleOrder::ExampleOrder(int32_t examples, uint64_t seed)
    : examples_(examples), key_(RandomKey(seed, "shuffle")) {}

const std::vector<int32_t>& ExampleOrder::Permutation(int64_t epoch) {
  Slot& slot = slots_[static_cast<size_t>(epoch % 2)];
  if (slot.epoch != epoch) slot = {epoch, RandomPermutation(examples_, key_, static_cast<uint64_t>(epoch))};
  return slot.permutation;
}

void ExampleOrder::Fill(int64_t first, absl::Span<int32_t> indexes) {
  while (!indexes.empty()) {
    const std::vector<int32_t>& permutation = Permutation(first / examples_);
    const int64_t at = first % examples_;
    const size_t n = std::min(indexes.size(), static_cast<size_t>(examples_ - at));
    std::copy_n(permutation.begin() + at, n, indexes.begin());
    indexes.remove_prefix(n);
    first += static_cast<int64_t>(n);
  }
}

}  // namespace weir
