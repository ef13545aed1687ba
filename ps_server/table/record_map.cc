#include "ps_server/table/record_map.h"

#include <cstring>
#include <new>
#include <system_error>
#include <utility>

#include "common/system/float_pool.h"

namespace weir {
namespace {

constexpr size_t kLine = 64, kSmallPage = 4096;  // bytes

std::shared_ptr<void> MakeSlab() {
  std::shared_ptr<void> slab = AllocateInHugePages(SlabPool::kSlab);
  for (size_t at = 0; at < SlabPool::kSlab; at += kSmallPage) {
    static_cast<volatile char*>(slab.get())[at] = 0;
  }
  return slab;
}

size_t BytesOf(size_t k) { return sizeof(uint64_t) << k; }

size_t LogOf(uint32_t slots) { return static_cast<size_t>(__builtin_ctz(slots)); }

constexpr size_t kSmallPiece = 4 << 10, kLargestPiece = 256 << 10;  // bytes
constexpr size_t kLeastRecords = 4;                                 // of a piece

// A multiple of 8, which the header's alignment wants.
size_t RecordBytes(size_t words) { return sizeof(Record) + (words + 1) / 2 * 2 * sizeof(float); }

}  // namespace

char* SlabPool::Take(size_t bytes) {
  bytes = (bytes + kLine - 1) / kLine * kLine;
  MutexLock lock(mutex_);
  if (bytes > left_) {
    left_ = std::max(bytes, kSlab);
    slabs_.push_back(left_ == kSlab && coming_.valid() ? coming_.get() : AllocateInHugePages(left_));
    next_ = static_cast<char*>(slabs_.back().get());
  }
  char* const taken = next_;
  next_ += bytes;
  left_ -= bytes;
  if (left_ <= kSlab / 2 && !coming_.valid()) MakeNext();
  return taken;
}

void SlabPool::MakeNext() {
  try {
    coming_ = std::async(std::launch::async, MakeSlab);
  } catch (const std::system_error&) {
    // Without a thread, the next slab is as the first one.
  }
}

uint64_t* IndexBlocks::Take(uint32_t slots) {
  const size_t wanted = LogOf(slots), largest = std::max(wanted, kJoined);
  size_t k = wanted;
  while (k < largest && free_[k].empty()) ++k;
  if (free_[k].empty()) {
    free_[k].insert(reinterpret_cast<uintptr_t>(pool_->Take(BytesOf(k))));
    bytes_ += BytesOf(k);
  }
  const uintptr_t block = free_[k].extract(free_[k].begin()).value();
  // The upper halves of what is too large.
  while (k > wanted) {
    --k;
    free_[k].insert(block + BytesOf(k));
  }
  auto* const taken = reinterpret_cast<uint64_t*>(block);
  std::memset(taken, 0, BytesOf(wanted));
  return taken;
}

void IndexBlocks::Return(uint64_t* block, uint32_t slots) {
  uintptr_t at = reinterpret_cast<uintptr_t>(block);
  size_t k = LogOf(slots);
  while (k < kJoined && free_[k].erase(at ^ BytesOf(k)) > 0) {
    at &= ~BytesOf(k);
    ++k;
  }
  free_[k].insert(at);
}

size_t RecordSlabs::PieceRecords(size_t piece) const {
  const size_t bytes = std::min(kLargestPiece, kSmallPiece << std::min<size_t>(piece, 10));
  return std::clamp<size_t>(bytes / record_bytes_, kLeastRecords, size_t{1} << kOffsetBits);
}

uint32_t RecordSlabs::Take() {
  if (returned_ != kNone) {
    const uint32_t number = returned_;
    std::memcpy(&returned_, At(number), sizeof returned_);
    return number;
  }
  if (pieces_.empty() || next_ == PieceRecords(pieces_.size() - 1)) {
    // The last number is kNone, and far beyond any machine's memory: one partition of a table would have 64
    // GB.
    if (pieces_.size() + 1 == size_t{1} << (32 - kOffsetBits)) throw std::bad_alloc();
    const size_t bytes = PieceRecords(pieces_.size()) * record_bytes_;
    pieces_.push_back(pool_->Take(bytes));
    bytes_ += bytes;
    next_ = 0;
  }
  return static_cast<uint32_t>((pieces_.size() - 1) << kOffsetBits | next_++);
}

void RecordSlabs::Return(uint32_t number) {
  std::memcpy(At(number), &returned_, sizeof returned_);
  returned_ = number;
}

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
