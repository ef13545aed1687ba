#include "client/tensors/residuals.h"

#include <algorithm>
#include <cstddef>
#include <iterator>

namespace weir {

Residuals::Residuals(const std::vector<int64_t>& shard_elements, bool consecutive)
    : shard_elements_(shard_elements), consecutive_(consecutive) {
  for (const int64_t elements : shard_elements_) {
    pools_.push_back(std::make_unique<FloatPool<>>(static_cast<size_t>(elements), HeapFloats));
  }
}

std::shared_ptr<float> Residuals::Take(const Key& key) {
  MutexLock lock(mutex_);
  if (consecutive_) {
    // Other workers have done these parts since.
    for (auto it = residuals_.begin(); it != residuals_.end();) {
      it = it->second.clock + 1 < key.clock ? residuals_.erase(it) : std::next(it);
    }
  }
  const auto found = residuals_.find({key.part, key.shard});
  if (found == residuals_.end()) return nullptr;
  const Residual residual = std::move(found->second);
  residuals_.erase(found);
  return residual.incarnation == key.incarnation ? residual.values : nullptr;
}

void Residuals::Put(const Key& key, std::shared_ptr<float> values) {
  MutexLock lock(mutex_);
  const auto [there, added] = residuals_.try_emplace({key.part, key.shard}, Residual{});
  Residual& residual = there->second;
  if (!added && residual.incarnation > key.incarnation) return;
  if (!added && residual.incarnation == key.incarnation) {
    float* const sum = residual.values.get();
    for (int64_t i = 0; i < shard_elements_[key.shard]; ++i) sum[i] += values.get()[i];
    residual.clock = std::max(residual.clock, key.clock);
    return;
  }
  residual = {key.clock, key.incarnation, std::move(values)};
}

}  // namespace weir
