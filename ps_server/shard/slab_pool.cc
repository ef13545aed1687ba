#include "ps_server/shard/slab_pool.h"

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

struct SlabPool::Free {
  Mutex mutex;
  std::vector<std::shared_ptr<float>> slabs ABSL_GUARDED_BY(mutex);
};

SlabPool::SlabPool(size_t elements, SlabSource source)
    : elements_(elements), source_(std::move(source)), free_(std::make_shared<Free>()) {}

Slab SlabPool::Take() {
  std::shared_ptr<float> slab;
  {
    MutexLock lock(free_->mutex);
    if (!free_->slabs.empty()) {
      slab = std::move(free_->slabs.back());
      free_->slabs.pop_back();
    }
  }
  if (slab == nullptr) slab = source_(elements_);
  if (slab == nullptr) slab = AllocateSlab(elements_);
  float* const values = slab.get();
  return Slab(values, [free = free_, slab = std::move(slab)](float*) mutable {
    MutexLock lock(free->mutex);
    free->slabs.push_back(std::move(slab));
  });
}

}  // namespace weir
