#pragma once

#include <cstddef>
#include <functional>
#include <memory>
#include <vector>

#include "common/sync/mutex.h"

namespace weir {

// A shard's worth of float32, 64-byte aligned: weights, an optimizer slot, or a gradient that arrives.
// Shared; the last reference gives it back to its pool.
using Slab = std::shared_ptr<float>;

// Where a pool gets a slab's memory from: so many floats, which live as long as the pointer; nullptr if there
// is no memory.
using SlabSource = std::function<std::shared_ptr<float>(size_t elements)>;

// Memory of this process alone, in huge pages where the system allows them.
std::shared_ptr<float> AllocateSlab(size_t elements);

// Recycles slabs of one size, so that after warm-up an update takes no new memory from the system.
// Thread-safe. Slabs may outlive the pool.
class SlabPool {
 public:
  explicit SlabPool(size_t elements, SlabSource source = AllocateSlab);

  size_t elements() const { return elements_; }
  // Its values are undefined.
  Slab Take();

 private:
  struct Free;
  const size_t elements_;
  const SlabSource source_;
  const std::shared_ptr<Free> free_;
};

}  // namespace weir
