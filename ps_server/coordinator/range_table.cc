#include "ps_server/coordinator/range_table.h"

#include <algorithm>

namespace weir {

Intervals HeldByAll(const std::vector<Intervals>& holders) {
  std::map<uint64_t, int64_t> change;  // of the number of holders, from this batch on
  for (const Intervals& intervals : holders) {
    for (const v1::Interval& interval : intervals) {
      if (interval.begin() >= interval.end()) continue;
      ++change[interval.begin()];
      --change[interval.end()];
    }
  }
  Intervals out;
  int64_t count = 0;
  const auto all = static_cast<int64_t>(holders.size());
  for (auto it = change.begin(); it != change.end(); ++it) {
    const bool before = count == all;
    count += it->second;
    const bool after = count == all;
    if (!before && after) out.Add()->set_begin(it->first);
    if (before && !after) out[out.size() - 1].set_end(it->first);
  }
  return out;
}

RangeTable::RangeTable(uint64_t total_batches, uint32_t workers, const Intervals& done)
    : total_batches_(total_batches),
      range_batches_(std::clamp<uint64_t>(total_batches / (16 * uint64_t{workers}), 1, 64)) {
  uint64_t next = 0, left = 0;
  const auto add = [&](uint64_t end) {
    if (next >= end) return;
    fresh_.emplace_back(next, end);
    left += end - next;
  };
  for (const v1::Interval& interval : done) {
    add(std::min(interval.begin(), total_batches));
    next = std::max(next, interval.end());
  }
  add(total_batches);
  completed_batches_ = total_batches - left;
}

std::optional<v1::Range> RangeTable::Take(uint32_t worker) {
  if (const auto held = held_.find(worker); held != held_.end()) return held->second;
  v1::Range range;
  if (!returned_.empty()) {
    range = returned_.begin()->second;
    returned_.erase(returned_.begin());
  } else if (Available()) {
    auto& [begin, end] = fresh_.front();
    range.set_id(begin);
    range.set_first_batch(begin);
    range.set_batches(std::min(range_batches_, std::min(end, work_end_) - begin));
    begin += range.batches();
    if (begin == end) fresh_.pop_front();
  } else {
    return std::nullopt;
  }
  held_[worker] = range;
  return range;
}

void RangeTable::EndHere() {
  fresh_.clear();
  returned_.clear();
  total_batches_ = completed_batches_;
}

void RangeTable::Complete(uint64_t id, uint32_t worker) {
  const auto held = held_.find(worker);
  if (held == held_.end() || held->second.id() != id) return;
  completed_batches_ += held->second.batches();
  held_.erase(held);
}

void RangeTable::Release(uint32_t worker) {
  const auto held = held_.find(worker);
  if (held == held_.end()) return;
  returned_[held->second.id()] = held->second;
  held_.erase(held);
}

}  // namespace weir
