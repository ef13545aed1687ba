#pragma once

#include <cstddef>
#include <cstdint>
#include <set>
#include <vector>

#include "ps_server/table/slab_pool.h"

namespace weir {

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

}  // namespace weir
