#include "ps_server/shard/slab_pool.h"

#include <algorithm>
#include <new>
#include <utility>

namespace weir {
namespace {

constexpr std::align_val_t kAlignment{64};

float* Allocate(size_t elements) {
  return static_cast<float*>(::operator new(std::max<size_t>(elements, 1) * sizeof(float), kAlignment));
}
void Release(float* slab) { ::operator delete(slab, kAlignment); }

}  // namespace

struct SlabPool::Free {
  ~Free() {
    for (float* slab : slabs) Release(slab);
  }
  Mutex mutex;
  std::vector<float*> slabs ABSL_GUARDED_BY(mutex);
};

SlabPool::SlabPool(size_t elements) : elements_(elements), free_(std::make_shared<Free>()) {}

Slab SlabPool::Take() {
  float* slab = nullptr;
  {
    MutexLock lock(free_->mutex);
    if (!free_->slabs.empty()) {
      slab = free_->slabs.back();
      free_->slabs.pop_back();
    }
  }
  if (slab == nullptr) slab = Allocate(elements_);
  return Slab(slab, [free = free_](float* done) {
    MutexLock lock(free->mutex);
    free->slabs.push_back(done);
  });
}

}  // namespace weir
