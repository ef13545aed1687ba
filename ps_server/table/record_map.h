#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <vector>

#include "common/model/key_bucket.h"
#include "ps_server/table/index_blocks.h"
#include "ps_server/table/record_slabs.h"
#include "ps_server/table/slab_pool.h"

namespace weir {

// The state that a table keeps under a key. Lies in a RecordMap, and does not move.
struct Record {
  uint64_t key;
  uint64_t updated;  // the version that made this state; see RecordStore

  // As many as the map has words. They follow this header.
  float* words() { return reinterpret_cast<float*>(this + 1); }
  const float* words() const { return reinterpret_cast<const float*>(this + 1); }
};

// Records of one size under 64-bit keys, for some of a table's buckets (common/model/key_bucket.h). Each
// bucket has an index of its own: a small array with open addressing, linear probing and at most three
// quarters in use, that doubles by itself. So growth never touches more than one bucket: no pause. A slot has
// 8 bytes, a record's number and 32 bits of its key's hash; so a slot of another key is told apart, and an
// index doubles, without a look at the records.
//
// A caller names a key with its HashKey(). A look-up has two cache misses, in the index and in the record: a
// caller with many keys overlaps them by VisitRecords() (visit_records.h).
//
// One thread at a time; calls of const members may run at the same time.
class RecordMap {
 public:
  // `words`: float32 words of a record. `buckets`: a power of two; bucket b of the table is at b mod buckets.
  RecordMap(size_t words, uint32_t buckets, std::shared_ptr<RecordPools> pools);
  RecordMap(const RecordMap&) = delete;
  RecordMap& operator=(const RecordMap&) = delete;

  size_t words() const { return words_; }
  size_t size() const { return size_; }
  size_t BucketSize(uint32_t bucket) const { return At(bucket).size; }
  // The bytes that records and indexes have taken from the pools, and those of the buckets.
  size_t bytes() const;

  void PrefetchIndex(uint64_t hash) const {
    const Bucket& bucket = BucketOf(hash);
    if (bucket.slots != nullptr) __builtin_prefetch(&bucket.slots[Tag(hash) & bucket.mask]);
  }
  // The first record whose 32 bits fit the hash, which nearly always is the key's, without a look at it.
  // Null: the key has no record.
  Record* Likely(uint64_t hash) const {
    const Bucket& bucket = BucketOf(hash);
    if (bucket.slots == nullptr) return nullptr;
    for (uint32_t i = Tag(hash) & bucket.mask;; i = (i + 1) & bucket.mask) {
      const uint64_t slot = bucket.slots[i];
      if (slot == kEmpty) return nullptr;
      if (slot >> 32 == Tag(hash)) return RecordOf(slot);
    }
  }
  // Null: the key has no record.
  Record* Find(uint64_t hash, uint64_t key) const;

  // A new record of a key that has none. Its words have any contents, `updated` too.
  Record* Create(uint64_t hash, uint64_t key);
  // Removes the record of a key that has one.
  void Erase(uint64_t hash, uint64_t key);

  // visit(Record&) for each record of a bucket, in no set order. It must not create or erase.
  template <typename Visit>
  void ForEach(uint32_t bucket, const Visit& visit) const {
    const Bucket& b = At(bucket);
    if (b.size == 0) return;
    // The records lie anywhere, so all of their misses overlap.
    for (uint32_t i = 0; i <= b.mask; ++i) {
      if (b.slots[i] != kEmpty) __builtin_prefetch(RecordOf(b.slots[i]));
    }
    for (uint32_t i = 0; i <= b.mask; ++i) {
      if (b.slots[i] != kEmpty) visit(*RecordOf(b.slots[i]));
    }
  }

 private:
  // A slot: the tag, 32 bits of the hash, and below it the record's number + 1.
  static constexpr uint64_t kEmpty = 0;

  struct Bucket {
    uint64_t* slots = nullptr;  // null, or mask + 1 of them, a power of two
    uint32_t mask = 0;
    uint32_t size = 0;
  };

  static uint32_t Tag(uint64_t hash) { return static_cast<uint32_t>(hash); }
  const Bucket& At(uint32_t bucket) const { return buckets_[bucket & (buckets_.size() - 1)]; }
  const Bucket& BucketOf(uint64_t hash) const { return At(BucketOfHash(hash)); }
  Bucket& BucketOf(uint64_t hash) { return buckets_[BucketOfHash(hash) & (buckets_.size() - 1)]; }
  Record* RecordOf(uint64_t slot) const {
    return reinterpret_cast<Record*>(slabs_.At(static_cast<uint32_t>(slot) - 1));
  }
  // The slot of a key that has a record.
  uint32_t SlotOf(const Bucket& bucket, uint64_t hash, uint64_t key) const;
  void Grow(Bucket& bucket);

  size_t words_;
  std::shared_ptr<RecordPools> pools_;
  RecordSlabs slabs_;
  IndexBlocks blocks_;
  std::vector<Bucket> buckets_;
  size_t size_ = 0;
};

}  // namespace weir
