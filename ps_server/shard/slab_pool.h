#pragma once

#include <cstddef>
#include <functional>
#include <memory>
#include <vector>

#include "common/sync/mutex.h"

namespace weir {

// An array of float32 of a shard's size, 64-byte aligned: weights, an optimizer slot, or a gradient that
// arrives. The last reference returns it to its pool.
using Slab = std::shared_ptr<float>;

// Allocates a slab's memory for a pool: this many floats, which live as long as the pointer; nullptr if there
// is no memory.
using SlabSource = std::function<std::shared_ptr<float>(size_t elements)>;

// Memory of this process only, in huge pages where the system allows them.
std::shared_ptr<float> AllocateSlab(size_t elements);

// Recycles slabs of one size, so an update allocates no memory after warm-up. Thread-safe. Slabs may outlive
// the pool.
class SlabPool {
 public:
  explicit SlabPool(size_t elements, SlabSource source = AllocateSlab);

  size_t elements() const { return elements_; }
  // The values are undefined.
  Slab Take();

 private:
  struct Free;
  const size_t elements_;
  const SlabSource source_;
  const std::shared_ptr<Free> free_;
};

}  // namespace weir
