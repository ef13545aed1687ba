#include "common/system/huge_pages.h"

#include <sys/mman.h>

#include <algorithm>
#include <new>

namespace weir {
namespace {

constexpr size_t kHugePage = 2 << 20;

}  // namespace

std::shared_ptr<void> AllocateInHugePages(size_t bytes) {
  bytes = std::max<size_t>(bytes, 1);
  const size_t alignment = bytes >= kHugePage ? kHugePage : 64;
  void* const memory = ::operator new(bytes, std::align_val_t(alignment));
  // A hint, which the system may ignore.
  if (alignment == kHugePage) madvise(memory, bytes, MADV_HUGEPAGE);
  return std::shared_ptr<void>(
      memory, [alignment](void* done) { ::operator delete(done, std::align_val_t(alignment)); });
}

}  // namespace weir
