#include "worker/weights_gate.h"

#include <algorithm>

namespace weir {

void WeightsGate::Arrived(size_t tensor) {
  MutexLock lock(mutex_);
  arrived_[tensor] = true;
  news_.NotifyAll();
}

void WeightsGate::Ended(const absl::Status& status) {
  MutexLock lock(mutex_);
  if (ended_) return;
  ended_ = true;
  status_ = status;
  if (status.ok()) arrived_.assign(arrived_.size(), true);
  news_.NotifyAll();
}

bool WeightsGate::Decided(size_t first, size_t end) const {
  return ended_ ||
         std::all_of(arrived_.begin() + static_cast<std::ptrdiff_t>(first),
                     arrived_.begin() + static_cast<std::ptrdiff_t>(end), [](bool is) { return is; });
}

absl::Status WeightsGate::Await(size_t first, size_t end, Wait wait) {
  const auto ready = [&] {
    MutexLock lock(mutex_);
    return Decided(first, end);
  };
  const auto sleep = [&] {
    MutexLock lock(mutex_);
    while (!Decided(first, end)) news_.Wait(mutex_);
  };
  if (!ready()) wait(ready, sleep);
  MutexLock lock(mutex_);
  return status_;
}

}  // namespace weir
