#pragma once

#include <cstdint>
#include <iterator>
#include <map>

namespace weir {

// A set of batch numbers, kept as intervals: batches are done roughly in order, so it stays small however
// long the job. Not thread-safe.
class BatchSet {
 public:
  bool Contains(uint64_t batch) const {
    auto it = intervals_.upper_bound(batch);
    return it != intervals_.begin() && std::prev(it)->second > batch;
  }

  void Insert(uint64_t batch) {
    if (Contains(batch)) return;
    uint64_t begin = batch, end = batch + 1;
    auto next = intervals_.lower_bound(batch);
    if (next != intervals_.end() && next->first == end) {
      end = next->second;
      next = intervals_.erase(next);
    }
    if (next != intervals_.begin() && std::prev(next)->second == begin) {
      std::prev(next)->second = end;
    } else {
      intervals_.emplace(begin, end);
    }
  }

  size_t intervals() const { return intervals_.size(); }

 private:
  std::map<uint64_t, uint64_t> intervals_;  // begin -> end (exclusive); disjoint, not adjacent
};

}  // namespace weir
