#pragma once

#include <algorithm>
#include <cstddef>

#include "ps_server/table/record_map.h"

namespace weir {

// Visits the records of n keys in their order, with most of the cache misses under way at the same time. It
// takes the keys in groups: first all index misses, then all records' misses (group prefetching, Chen,
// Ailamaki, Gibbons and Mowry, "Improving Hash Join Performance through Prefetching", ICDE 2004). Measured on
// rows of 16 to 64, this takes half the time of one loop that prefetches both ahead, where a mispredicted
// probe holds up everything.
//
//   bytes            what visit() uses of a record's words
//   hash(i)          the HashKey() of key i
//   map(hash)        the RecordMap that the key with this hash belongs to
//   visit(i, likely) `likely`: what Likely() gave, perhaps before earlier keys were visited. Records do not
//   move,
//                    so that stays right while records are only created, and each key is named once.
template <typename Hash, typename Map, typename Visit>
void VisitRecords(size_t n, size_t bytes, const Hash& hash, const Map& map, const Visit& visit) {
  constexpr size_t kGroup = 128, kAhead = 16, kLine = 64;
  Record* likely[kGroup];
  const auto prefetch = [&](size_t k) {
    const char* const record = reinterpret_cast<const char*>(likely[k]);
    if (record == nullptr) return;
    const size_t last = sizeof(Record) + bytes - 1;
    for (size_t at = 0; at < last; at += kLine) __builtin_prefetch(record + at);
    __builtin_prefetch(record + last);
  };
  for (size_t first = 0; first < n; first += kGroup) {
    const size_t size = std::min(kGroup, n - first);
    for (size_t k = 0; k < size; ++k) map(hash(first + k)).PrefetchIndex(hash(first + k));
    for (size_t k = 0; k < size; ++k) likely[k] = map(hash(first + k)).Likely(hash(first + k));
    for (size_t k = 0; k < std::min(kAhead, size); ++k) prefetch(k);
    for (size_t k = 0; k < size; ++k) {
      if (k + kAhead < size) prefetch(k + kAhead);
      visit(first + k, likely[k]);
    }
  }
}

}  // namespace weir
