#pragma once

#include <cstddef>
#include <memory>
#include <vector>

#include "common/mutex.h"

namespace weir {

// A shard's worth of float32, 64-byte aligned: weights, an optimizer slot, or a gradient that arrives.
// Shared; the last reference gives it back to its pool.
using Slab = std::shared_ptr<float>;

// Recycles slabs of one size, so that after warm-up an update takes no new memory from the system.
// Thread-safe. Slabs may outlive the pool.
class SlabPool {
 public:
  explicit SlabPool(size_t elements);

  size_t elements() const { return elements_; }
  // Its values are undefined.
  Slab Take();

 private:
  struct Free;
  const size_t elements_;
  const std::shared_ptr<Free> free_;
};

}  // namespace weir
