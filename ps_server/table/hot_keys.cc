#include "ps_server/table/hot_keys.h"

#include <algorithm>

#include "common/model/key_bucket.h"

namespace weir {

void HotKeys::Offer(absl::Span<const uint64_t> keys, absl::Span<const uint64_t> hashes) {
  if (pushes_ == 0) {
    mask_ = 0;
    while (keys.size() / (mask_ + 1) > kCounted) mask_ = 2 * mask_ + 1;
    slice_ = rounds_ & mask_;
  }
  for (size_t i = 0; i < hashes.size(); ++i) {
    if ((hashes[i] & mask_) != slice_) continue;
    const auto counted = counts_.find(keys[i]);
    if (counted != counts_.end()) {
      ++counted->second;
    } else if (counts_.size() < kMostCounted) {
      counts_.emplace(keys[i], 1);
    }
  }
  if (++pushes_ == kPushes) EndRound();
}

void HotKeys::EndRound() {
  const auto counted = [&](const Kept& one) { return (one.hash & mask_) == slice_; };
  kept_.erase(std::remove_if(kept_.begin(), kept_.end(), counted), kept_.end());
  for (const auto& [key, pushes] : counts_) kept_.push_back({key, HashKey(key), pushes});
  std::sort(kept_.begin(), kept_.end(), [](const Kept& a, const Kept& b) {
    return a.pushes != b.pushes ? a.pushes > b.pushes : a.key < b.key;
  });
  if (kept_.size() > kKept) kept_.resize(kKept);
  counts_.clear();
  pushes_ = 0;
  ++rounds_;
}

std::vector<HotKeys::Key> HotKeys::Hottest(size_t most) const {
  std::vector<Key> keys;
  for (const Kept& one : kept_) {
    if (keys.size() == most) break;
    keys.push_back({one.key, static_cast<double>(one.pushes) / kPushes});
  }
  return keys;
}

}  // namespace weir
