#pragma once

#include <cstddef>
#include <functional>
#include <memory>

namespace weir {

// An array of float32 of a shard's size, 64-byte aligned: weights, an optimizer slot, or a gradient that
// arrives. The last reference returns the memory to its pool.
using Slab = std::shared_ptr<float>;

// Allocates a slab for a pool: this many floats, which live as long as the pointer. nullptr: no memory.
using SlabSource = std::function<std::shared_ptr<float>(size_t elements)>;

// Allocates memory of this process only, in huge pages where the system allows them.
std::shared_ptr<float> AllocateSlab(size_t elements);

// Takes memory of `source` or, where that has none, of this process.
SlabSource OrOwnMemory(SlabSource source);

}  // namespace weir
