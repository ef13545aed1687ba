#include "ps_server/table/slab_pool.h"

#include <algorithm>
#include <system_error>

#include "common/system/float_pool.h"

namespace weir {
namespace {

constexpr size_t kLine = 64, kSmallPage = 4096;  // bytes

std::shared_ptr<void> MakeSlab() {
  std::shared_ptr<void> slab = AllocateInHugePages(SlabPool::kSlab);
  for (size_t at = 0; at < SlabPool::kSlab; at += kSmallPage) {
    static_cast<volatile char*>(slab.get())[at] = 0;
  }
  return slab;
}

}  // namespace

char* SlabPool::Take(size_t bytes) {
  bytes = (bytes + kLine - 1) / kLine * kLine;
  MutexLock lock(mutex_);
  if (bytes > left_) {
    left_ = std::max(bytes, kSlab);
    slabs_.push_back(left_ == kSlab && coming_.valid() ? coming_.get() : AllocateInHugePages(left_));
    next_ = static_cast<char*>(slabs_.back().get());
  }
  char* const taken = next_;
  next_ += bytes;
  left_ -= bytes;
  if (left_ <= kSlab / 2 && !coming_.valid()) MakeNext();
  return taken;
}

void SlabPool::MakeNext() {
  try {
    coming_ = std::async(std::launch::async, MakeSlab);
  } catch (const std::system_error&) {
    // Without a thread, the next slab is as the first one.
  }
}

}  // namespace weir
