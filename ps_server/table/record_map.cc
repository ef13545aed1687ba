#include "ps_server/table/record_map.h"

#include <utility>

namespace weir {
namespace {

// A multiple of 8, which the header's alignment wants.
size_t RecordBytes(size_t words) { return sizeof(Record) + (words + 1) / 2 * 2 * sizeof(float); }

}  // namespace

RecordMap::RecordMap(size_t words, uint32_t buckets, std::shared_ptr<RecordPools> pools)
    : words_(words),
      pools_(std::move(pools)),
      slabs_(RecordBytes(words), &pools_->records),
      blocks_(&pools_->indexes),
      buckets_(buckets) {}

size_t RecordMap::bytes() const {
  return slabs_.bytes() + blocks_.bytes() + buckets_.size() * sizeof(Bucket);
}

Record* RecordMap::Find(uint64_t hash, uint64_t key) const {
  const Bucket& bucket = BucketOf(hash);
  if (bucket.slots == nullptr) return nullptr;
  for (uint32_t i = Tag(hash) & bucket.mask; bucket.slots[i] != kEmpty; i = (i + 1) & bucket.mask) {
    if (bucket.slots[i] >> 32 != Tag(hash)) continue;
    Record* const record = RecordOf(bucket.slots[i]);
    if (record->key == key) return record;
  }
  return nullptr;
}

Record* RecordMap::Create(uint64_t hash, uint64_t key) {
  Bucket& bucket = BucketOf(hash);
  if (bucket.slots == nullptr || (bucket.size + 1) * uint64_t{4} > (bucket.mask + 1) * uint64_t{3}) {
    Grow(bucket);
  }
  const uint32_t number = slabs_.Take();
  uint32_t i = Tag(hash) & bucket.mask;
  while (bucket.slots[i] != kEmpty) i = (i + 1) & bucket.mask;
  bucket.slots[i] = uint64_t{Tag(hash)} << 32 | (number + 1);
  ++bucket.size;
  ++size_;
  Record* const record = RecordOf(bucket.slots[i]);
  record->key = key;
  return record;
}

void RecordMap::Grow(Bucket& bucket) {
  const uint32_t old_slots = bucket.slots == nullptr ? 0 : bucket.mask + 1;
  const uint32_t new_slots = old_slots == 0 ? IndexBlocks::kLeastSlots : 2 * old_slots;
  const uint32_t mask = new_slots - 1;
  uint64_t* const slots = blocks_.Take(new_slots);
  for (uint32_t old = 0; old < old_slots; ++old) {
    const uint64_t slot = bucket.slots[old];
    if (slot == kEmpty) continue;
    uint32_t i = static_cast<uint32_t>(slot >> 32) & mask;
    while (slots[i] != kEmpty) i = (i + 1) & mask;
    slots[i] = slot;
  }
  if (old_slots > 0) blocks_.Return(bucket.slots, old_slots);
  bucket.slots = slots;
  bucket.mask = mask;
}

uint32_t RecordMap::SlotOf(const Bucket& bucket, uint64_t hash, uint64_t key) const {
  uint32_t i = Tag(hash) & bucket.mask;
  while (bucket.slots[i] >> 32 != Tag(hash) || RecordOf(bucket.slots[i])->key != key) {
    i = (i + 1) & bucket.mask;
  }
  return i;
}

void RecordMap::Erase(uint64_t hash, uint64_t key) {
  Bucket& bucket = BucketOf(hash);
  uint32_t hole = SlotOf(bucket, hash, key);
  slabs_.Return(static_cast<uint32_t>(bucket.slots[hole]) - 1);
  // Knuth, volume 3, algorithm 6.4R: later slots of the run move up, unless that is before their home.
  for (uint32_t i = (hole + 1) & bucket.mask; bucket.slots[i] != kEmpty; i = (i + 1) & bucket.mask) {
    const uint32_t home = static_cast<uint32_t>(bucket.slots[i] >> 32) & bucket.mask;
    if (((i - home) & bucket.mask) < ((i - hole) & bucket.mask)) continue;
    bucket.slots[hole] = bucket.slots[i];
    hole = i;
  }
  bucket.slots[hole] = kEmpty;
  --bucket.size;
  --size_;
}

}  // namespace weir
