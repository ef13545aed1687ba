#include "ps_server/shard/slab.h"

#include <sys/mman.h>

#include <algorithm>
#include <new>
#include <utility>

namespace weir {
namespace {

constexpr size_t kHugePage = 2 << 20;

}  // namespace

std::shared_ptr<float> AllocateSlab(size_t elements) {
  const size_t bytes = std::max<size_t>(elements, 1) * sizeof(float);
  const size_t alignment = bytes >= kHugePage ? kHugePage : 64;
  void* const memory = ::operator new(bytes, std::align_val_t(alignment));
  // A hint, which the system may ignore.
  if (alignment == kHugePage) madvise(memory, bytes, MADV_HUGEPAGE);
  return std::shared_ptr<float>(static_cast<float*>(memory), [alignment](float* done) {
    ::operator delete(done, std::align_val_t(alignment));
  });
}

SlabSource OrOwnMemory(SlabSource source) {
  return [source = std::move(source)](size_t elements) {
    std::shared_ptr<float> memory = source(elements);
    return memory != nullptr ? memory : AllocateSlab(elements);
  };
}

}  // namespace weir
