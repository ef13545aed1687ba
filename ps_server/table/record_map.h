#pragma once

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <future>
#include <memory>
#include <set>
#include <vector>

#include "common/model/key_bucket.h"
#include "common/threads/mutex.h"

namespace weir {

// Memory in slabs of huge pages, which is handed out in pieces and freed all together. The pages of the first
// slab come from the system as pieces of them are first written to: a small table takes what it needs. Each
// later slab is made, with all its pages, on a thread of its own while the one before is in use. A huge page
// takes the system 0.1 ms, and some milliseconds where a virtual machine has to get it from its host first;
// no update should wait for that. Thread-safe.
class SlabPool {
 public:
  // Bytes.
  static constexpr size_t kSlab = 32 << 20;

  // Lives as long as the pool; with any contents. Aligned to 64 bytes, and to any power of two up to 2 MiB of
  // which all sizes that were asked for are multiples.
  char* Take(size_t bytes) ABSL_LOCKS_EXCLUDED(mutex_);

 private:
  // Begins to make the next slab.
  void MakeNext() ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);

  Mutex mutex_;
  std::vector<std::shared_ptr<void>> slabs_ ABSL_GUARDED_BY(mutex_);
  // The slab that is being made, or is made. Not valid: none.
  std::future<std::shared_ptr<void>> coming_ ABSL_GUARDED_BY(mutex_);
  size_t left_ ABSL_GUARDED_BY(mutex_) = 0;  // of the last slab, in bytes
  char* next_ ABSL_GUARDED_BY(mutex_) = nullptr;
};

// The pools that several RecordMaps take their memory from. Records and indexes have a pool each, since a map
// asks for sizes of different kinds.
struct RecordPools {
  SlabPool records, indexes;
};

// Blocks of 2^k slots of 8 bytes for the indexes of a RecordMap's buckets, in huge pages: a look-up's first
// miss is there, and with small pages it would be two. A buddy allocator (Knuth, volume 1, section 2.5,
// algorithms R and S): since all indexes of a table double at about the same time, what they leave behind has
// to become larger blocks.
//
// One thread at a time.
class IndexBlocks {
 public:
  static constexpr uint32_t kLeastSlots = 8;  // one cache line

  // The pool outlives this object.
  explicit IndexBlocks(SlabPool* pool) : pool_(pool) {}

  // A block of zeros. slots: a power of two, at least kLeastSlots.
  uint64_t* Take(uint32_t slots);
  // A block that Take() gave with as many slots.
  void Return(uint64_t* block, uint32_t slots);

  // The bytes that were taken from the pool.
  size_t bytes() const { return bytes_; }

 private:
  // The largest blocks that are split and joined: 64 KiB. A larger one stays as it is, for the next of its
  // size.
  static constexpr size_t kJoined = 13;

  SlabPool* pool_;
  // By k, the addresses of the free blocks of 2^k slots, the lowest first. A block's size divides its
  // address.
  std::vector<std::set<uintptr_t>> free_{33};
  size_t bytes_ = 0;
};

// Records of one size in pieces of a pool. A record has a number and does not move. The first pieces are
// small, so that a small table is.
//
// One thread at a time.
class RecordSlabs {
 public:
  // record_bytes: a multiple of 8. The pool outlives this object.
  RecordSlabs(size_t record_bytes, SlabPool* pool) : record_bytes_(record_bytes), pool_(pool) {}

  // A record with any contents.
  uint32_t Take();
  void Return(uint32_t number);

  char* At(uint32_t number) const {
    return pieces_[number >> kOffsetBits] + (number & kOffsetMask) * record_bytes_;
  }
  // Of all pieces.
  size_t bytes() const { return bytes_; }

 private:
  // A number is a piece and an offset in it, in records.
  static constexpr uint32_t kOffsetBits = 14, kOffsetMask = (1u << kOffsetBits) - 1;
  static constexpr uint32_t kNone = UINT32_MAX;

  size_t PieceRecords(size_t piece) const;

  size_t record_bytes_;
  SlabPool* pool_;
  std::vector<char*> pieces_;
  size_t bytes_ = 0;
  size_t next_ = 0;  // the first record of the last piece that was never given out
  // The returned records are a list: each begins with the number of the next one.
  uint32_t returned_ = kNone;
};

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
