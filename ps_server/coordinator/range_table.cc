#include "ps_server/coordinator/range_table.h"

#include <algorithm>

namespace weir {

RangeTable::RangeTable(uint64_t total_batches, uint32_t workers)
    : total_batches_(total_batches),
      range_batches_(std::clamp<uint64_t>(total_batches / (16 * uint64_t{workers}), 1, 64)),
      ranges_((total_batches + range_batches_ - 1) / range_batches_) {}

std::optional<v1::Range> RangeTable::Take(uint32_t worker) {
  const auto held = held_.find(worker);
  if (held != held_.end()) return Make(held->second);
  uint64_t id;
  if (!returned_.empty()) {
    id = *returned_.begin();
    returned_.erase(returned_.begin());
  } else if (next_ < ranges_) {
    id = next_++;
  } else {
    return std::nullopt;
  }
  held_[worker] = id;
  return Make(id);
}

void RangeTable::Complete(uint64_t id, uint32_t worker) {
  const auto held = held_.find(worker);
  if (held == held_.end() || held->second != id) return;
  held_.erase(held);
  ++completed_;
  completed_batches_ += Make(id).batches();
}

void RangeTable::Release(uint32_t worker) {
  const auto held = held_.find(worker);
  if (held == held_.end()) return;
  returned_.insert(held->second);
  held_.erase(held);
}

v1::Range RangeTable::Make(uint64_t id) const {
  v1::Range range;
  range.set_id(id);
  range.set_first_batch(id * range_batches_);
  range.set_batches(std::min(range_batches_, total_batches_ - id * range_batches_));
  return range;
}

}  // namespace weir
