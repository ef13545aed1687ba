#pragma once

#include <cstddef>
#include <cstdint>
#include <deque>
#include <memory>
#include <optional>
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

// A RecordMap with its past: while a version is pinned, the former state of each record that changes, appears
// or disappears is kept for it, once, as it was at the newest pinned version. A record is changed in place.
//
// A pinned version reads a key in the map if the key has not changed since. Otherwise it reads the former
// states that were kept since, the oldest first: the first state that it finds there is its own, since no
// change came in between.
//
// One thread at a time; calls of const members may run at the same time.
class RecordStore {
 public:
  // As RecordMap.
  RecordStore(size_t words, uint32_t buckets, std::shared_ptr<RecordPools> pools)
      : now_(words, buckets, std::move(pools)), buckets_(buckets) {}

  const RecordMap& now() const { return now_; }

  // Before the words of a record of now() change: keeps its former state where a pin needs it. `version`: the
  // version in the making, the same or later with each call.
  void Change(uint64_t hash, Record* record, uint64_t version);
  // For a key that has no record. The words have any contents.
  Record* Create(uint64_t hash, uint64_t key, uint64_t version);
  // For a key that has this record, which is gone then.
  void Erase(uint64_t hash, const Record* record);

  // Pins the newest version, which is not pinned. `pools`: the memory of former states.
  void Pin(uint64_t version, std::shared_ptr<RecordPools> pools);
  void Unpin(uint64_t version);

  // Notes what changes after `version`, the newest, and returns what was noted until now; nullopt: nothing
  // was.
  std::optional<RecordChanges> NoteChanges(uint64_t version) {
    return std::exchange(changes_, RecordChanges(version));
  }

  // A key's record at a pinned version; null: it had none. `now`: its record in now(), null if it has none.
  const Record* FindAt(uint64_t version, uint64_t hash, uint64_t key, const Record* now) const;

  // visit(const Record&) for each record of a bucket as it was at a pinned version, in no set order.
  template <typename Visit>
  void ForEachAt(uint64_t version, uint32_t bucket, const Visit& visit) const {
    for (size_t p = PinOf(version); p < pins_.size(); ++p) {
      pins_[p].former.ForEach(bucket, [&](const Record& record) {
        if (record.updated != kAbsent && FindFormer(version, p, HashKey(record.key), record.key) == nullptr)
          visit(record);
      });
    }
    now_.ForEach(bucket, [&](const Record& record) {
      if (record.updated <= version) visit(record);
    });
  }

  // The bytes of the kept states.
  size_t former_bytes() const;
  // Of now(), and of what is noted.
  size_t bytes() const { return now_.bytes() + (changes_.has_value() ? changes_->bytes() : 0); }

 private:
  // `updated` of a former state: the key had no record.
  static constexpr uint64_t kAbsent = UINT64_MAX;

  struct PinnedVersion {
    PinnedVersion(uint64_t version, size_t words, uint32_t buckets, std::shared_ptr<RecordPools> pools)
        : version(version), former(words, buckets, std::move(pools)) {}

    const uint64_t version;
    bool pinned = true;
    // By key: the state at this version of what has changed between it and the next pin.
    RecordMap former;
  };

  // The first pin of at least this version.
  size_t PinOf(uint64_t version) const;
  // The state that the pins from `version` on, but before pins_[end], have of a key. Null: none.
  const Record* FindFormer(uint64_t version, size_t end, uint64_t hash, uint64_t key) const;
  // Keeps a state for the newest pin, unless it has one. record null: absent.
  void Keep(uint64_t hash, uint64_t key, const Record* record);

  RecordMap now_;
  std::optional<RecordChanges> changes_;
  const uint32_t buckets_;
  std::deque<PinnedVersion> pins_;  // by version. One that is no longer pinned stays while an older one is
};

}  // namespace weir
