#include "ps_server/shard/versions/slab.h"

#include <utility>

#include "common/system/float_pool.h"

namespace weir {

std::shared_ptr<float> AllocateSlab(size_t elements) {
  const std::shared_ptr<void> memory = AllocateInHugePages(elements * sizeof(float));
  return {memory, static_cast<float*>(memory.get())};
}

SlabSource OrOwnMemory(SlabSource source) {
  return [source = std::move(source)](size_t elements) {
    std::shared_ptr<float> memory = source(elements);
    return memory != nullptr ? memory : AllocateSlab(elements);
  };
}

}  // namespace weir
