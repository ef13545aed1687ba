#include "ps_server/table/slab_pool.h"

#include <algorithm>

#include "common/system/huge_pages.h"

namespace weir {
namespace {

constexpr size_t kSlab = 32 << 20, kLine = 64;  // bytes

}  // namespace

char* SlabPool::Take(size_t bytes) {
  bytes = (bytes + kLine - 1) / kLine * kLine;
  MutexLock lock(mutex_);
  if (bytes > left_) {
    left_ = std::max(bytes, kSlab);
    slabs_.push_back(AllocateInHugePages(left_));
    next_ = static_cast<char*>(slabs_.back().get());
  }
  char* const taken = next_;
  next_ += bytes;
  left_ -= bytes;
  return taken;
}

}  // namespace weir
