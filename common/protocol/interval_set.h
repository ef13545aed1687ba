#pragma once

#include <algorithm>
#include <cstdint>
#include <iterator>
#include <map>

#include "proto/model.pb.h"

namespace weir {

// Intervals as they are sent and stored: not empty, disjoint, not adjacent, rising.
using Intervals = google::protobuf::RepeatedPtrField<v1::Interval>;

// A set of numbers (batches, clocks), kept as intervals: batches are done roughly in order, so the set stays
// small however long the job runs. Not thread-safe.
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

  void Insert(const Intervals& intervals) {
    for (const v1::Interval& interval : intervals) Insert(interval.begin(), interval.end());
  }

  // Takes out what is below `end`, and returns it.
  IntervalSet TakeBelow(uint64_t end) {
    IntervalSet out;
    auto it = intervals_.begin();
    for (; it != intervals_.end() && it->second <= end; it = intervals_.erase(it)) out.intervals_.insert(*it);
    if (it != intervals_.end() && it->first < end) {
      out.intervals_.emplace(it->first, end);
      intervals_.emplace(end, it->second);
      intervals_.erase(it);
    }
    return out;
  }

  // The size of what `other` does not hold.
  uint64_t SizeWithout(const IntervalSet& other) const {
    uint64_t size = 0;
    for (const auto& [begin, end] : intervals_) {
      uint64_t at = begin;
      auto it = other.intervals_.upper_bound(begin);
      if (it != other.intervals_.begin()) --it;
      for (; it != other.intervals_.end() && it->first < end; ++it) {
        if (it->first > at) size += it->first - at;
        at = std::max(at, std::min(end, it->second));
      }
      size += end - at;
    }
    return size;
  }

  uint64_t size() const {
    uint64_t size = 0;
    for (const auto& [begin, end] : intervals_) size += end - begin;
    return size;
  }

  Intervals ToProto() const {
    Intervals out;
    for (const auto& [begin, end] : intervals_) {
      v1::Interval* interval = out.Add();
      interval->set_begin(begin);
      interval->set_end(end);
    }
    return out;
  }

  // begin -> end (exclusive); disjoint, not adjacent.
  const std::map<uint64_t, uint64_t>& intervals() const { return intervals_; }

 private:
  std::map<uint64_t, uint64_t> intervals_;
};

}  // namespace weir
