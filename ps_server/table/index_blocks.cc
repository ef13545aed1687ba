#include "ps_server/table/index_blocks.h"

#include <algorithm>
#include <cstring>

namespace weir {
namespace {

size_t BytesOf(size_t k) { return sizeof(uint64_t) << k; }

size_t LogOf(uint32_t slots) { return static_cast<size_t>(__builtin_ctz(slots)); }

}  // namespace

uint64_t* IndexBlocks::Take(uint32_t slots) {
  const size_t wanted = LogOf(slots), largest = std::max(wanted, kJoined);
  size_t k = wanted;
  while (k < largest && free_[k].empty()) ++k;
  if (free_[k].empty()) {
    free_[k].insert(reinterpret_cast<uintptr_t>(pool_->Take(BytesOf(k))));
    bytes_ += BytesOf(k);
  }
  const uintptr_t block = free_[k].extract(free_[k].begin()).value();
  // The upper halves of what is too large.
  while (k > wanted) {
    --k;
    free_[k].insert(block + BytesOf(k));
  }
  auto* const taken = reinterpret_cast<uint64_t*>(block);
  std::memset(taken, 0, BytesOf(wanted));
  return taken;
}

void IndexBlocks::Return(uint64_t* block, uint32_t slots) {
  uintptr_t at = reinterpret_cast<uintptr_t>(block);
  size_t k = LogOf(slots);
  while (k < kJoined && free_[k].erase(at ^ BytesOf(k)) > 0) {
    at &= ~BytesOf(k);
    ++k;
  }
  free_[k].insert(at);
}

}  // namespace weir
