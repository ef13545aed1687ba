#pragma once

#include <cstddef>
#include <cstdint>
#include <utility>

#include "absl/container/flat_hash_set.h"
#include "ps_server/table/record_map.h"

namespace weir {

// The changes of a RecordStore since a version: how many records were made or changed, and which keys have
// gone. The records themselves say which they are (Record::updated), but a key that has gone says nothing.
//
// One thread at a time.
class RecordChanges {
 public:
  using Keys = absl::flat_hash_set<uint64_t>;

  // So many keys that have gone are kept, then none: 64 partitions of a table keep a million.
  static constexpr size_t kMostRemoved = 16384;

  explicit RecordChanges(uint64_t since) : since_(since) {}

  // Before a record changes; after a key has got one; before a record is erased.
  void OnChange(const Record& record) { touched_ += record.updated <= since_ ? 1 : 0; }
  void OnCreate(uint64_t key) {
    ++touched_;
    if (!removed_.empty()) removed_.erase(key);
  }
  void OnErase(const Record& record) {
    if (record.updated > since_) --touched_;
    if (!complete_) return;
    // A record that was made since then may have gone. Whether there was one before is not known.
    removed_.insert(record.key);
    if (removed_.size() <= kMostRemoved) return;
    complete_ = false;
    removed_ = Keys();
  }

  uint64_t since() const { return since_; }
  // Records of a later version.
  size_t touched() const { return touched_; }
  // False: so many keys have gone that none are known.
  bool complete() const { return complete_; }
  // Keys that have gone and have no record.
  const Keys& removed() const { return removed_; }
  Keys TakeRemoved() && { return std::move(removed_); }
  size_t bytes() const { return removed_.capacity() * (sizeof(uint64_t) + 1); }

 private:
  uint64_t since_;
  size_t touched_ = 0;
  bool complete_ = true;
  Keys removed_;
};

}  // namespace weir
