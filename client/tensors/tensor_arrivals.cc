#include "client/tensors/tensor_arrivals.h"

#include <utility>

namespace weir {

TensorArrivals::TensorArrivals(const TensorMap& map, std::function<void(size_t tensor)> report)
    : map_(map),
      report_(std::move(report)),
      confirmed_(map.partition().shards()),
      unconfirmed_(map.partition().shards()) {
  for (const TensorSpec& tensor : map.model().tensors) missing_.push_back(tensor.elements());
}

void TensorArrivals::Confirm(uint32_t shard) {
  std::vector<size_t> whole;
  {
    MutexLock lock(mutex_);
    if (confirmed_[shard]) return;
    confirmed_[shard] = true;
    if (--unconfirmed_ > 0) return;
    for (size_t tensor = 0; tensor < missing_.size(); ++tensor) {
      if (missing_[tensor] == 0) whole.push_back(tensor);
    }
    settled_ = !whole.empty();
  }
  for (size_t tensor : whole) report_(tensor);
}

void TensorArrivals::Withdraw(uint32_t shard) {
  MutexLock lock(mutex_);
  if (settled_ || !confirmed_[shard]) return;
  confirmed_[shard] = false;
  ++unconfirmed_;
}

bool TensorArrivals::settled() const {
  MutexLock lock(mutex_);
  return settled_;
}

void TensorArrivals::Landed(uint32_t shard, int64_t first, int64_t count) {
  std::vector<size_t> whole;
  {
    MutexLock lock(mutex_);
    map_.Walk(shard, first, count,
              [&](size_t tensor, int64_t /*at*/, int64_t n) ABSL_NO_THREAD_SAFETY_ANALYSIS {
                missing_[tensor] -= n;
                if (missing_[tensor] == 0 && unconfirmed_ == 0) whole.push_back(tensor);
              });
    settled_ |= !whole.empty();
  }
  for (size_t tensor : whole) report_(tensor);
}

void TensorArrivals::Lost(uint32_t shard, int64_t first, int64_t count) {
  MutexLock lock(mutex_);
  map_.Walk(shard, first, count,
            [&](size_t tensor, int64_t /*at*/, int64_t n)
                ABSL_NO_THREAD_SAFETY_ANALYSIS { missing_[tensor] += n; });
}

}  // namespace weir
