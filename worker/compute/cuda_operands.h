#pragma once

#include <cstddef>
#include <cstdint>
#include <map>

namespace weir::cuda {

// Which tensors have been rounded to bfloat16 for a product, and not written since: a weight serves forward
// and backward, an activation its layer and the weight's gradient, so that half of the roundings are saved;
// it costs half as much memory again for each of them. Knows the memory, does not own it. Not thread-safe.
class RoundedOperands {
 public:
  struct Entry {
    uint16_t* memory = nullptr;  // the caller's to set
    int64_t capacity = 0;        // in elements
    int64_t elements = 0;        // that are as the tensor's first ones are now; 0: none
  };

  // The entry of the tensor that begins at x; it stays where it is until Forget.
  Entry* Get(const float* x) { return &entries_[reinterpret_cast<uintptr_t>(x)]; }

  // To be called for whatever writes device memory, in the order of the queue: [begin, begin + bytes) is no
  // longer what was rounded.
  void Wrote(const void* begin, size_t bytes) {
    const uintptr_t first = reinterpret_cast<uintptr_t>(begin);
    for (auto& [address, entry] : entries_) {
      if (address >= first + bytes) break;
      if (first < address + static_cast<size_t>(entry.elements) * sizeof(float)) entry.elements = 0;
    }
  }
  void WroteAnything() {
    for (auto& [address, entry] : entries_) entry.elements = 0;
  }

  // Drops the entries of tensors that begin in [begin, begin + bytes), each after a call of `release` with
  // its memory.
  template <typename Release>
  void Forget(const void* begin, size_t bytes, const Release& release) {
    const uintptr_t first = reinterpret_cast<uintptr_t>(begin);
    const auto from = entries_.lower_bound(first), to = entries_.lower_bound(first + bytes);
    for (auto it = from; it != to; ++it) release(it->second.memory);
    entries_.erase(from, to);
  }

 private:
  std::map<uintptr_t, Entry> entries_;  // by the tensor's address
};

}  // namespace weir::cuda
