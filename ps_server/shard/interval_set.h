#pragma once

#include <algorithm>
#include <cstdint>
#include <iterator>
#include <map>

namespace weir {

// A set of numbers (batches, clocks), kept as intervals: batches are done roughly in order, so it stays small
// however long the job. Not thread-safe.
class IntervalSet {
 public:
  bool Contains(uint64_t batch) const {
    auto it = intervals_.upper_bound(batch);
    return it != intervals_.begin() && std::prev(it)->second > batch;
  }

  void Insert(uint64_t batch) { Insert(batch, batch + 1); }

  // [begin, end), not empty.
  void Insert(uint64_t begin, uint64_t end) {
    auto it = intervals_.upper_bound(begin);
    if (it != intervals_.begin() && std::prev(it)->second >= begin) --it;
    for (; it != intervals_.end() && it->first <= end; it = intervals_.erase(it)) {
      begin = std::min(begin, it->first);
      end = std::max(end, it->second);
    }
    intervals_.emplace(begin, end);
  }

  // begin -> end (exclusive); disjoint, not adjacent.
  const std::map<uint64_t, uint64_t>& intervals() const { return intervals_; }

 private:
  std::map<uint64_t, uint64_t> intervals_;
};

}  // namespace weir
