#pragma once

#include <cstddef>
#include <cstdint>
#include <map>

#include "absl/status/statusor.h"

namespace weir::cuda {

// The device memory of one backend. It is taken from the current device in chunks, because taking it is slow
// and stops the device, and handed out in pieces from any chunk with room. An empty chunk is returned. Does
// not wait for the device's work. Not thread-safe.
class Arena {
 public:
  explicit Arena(size_t chunk_bytes) : chunk_bytes_(chunk_bytes) {}
  ~Arena();
  Arena(const Arena&) = delete;
  Arena& operator=(const Arena&) = delete;

  // Aligned to 256 bytes, as devices prefer. ResourceExhausted: what was asked for and what is there.
  absl::StatusOr<void*> Allocate(size_t bytes);
  void Free(void* pointer);
  // The size of a piece, after rounding up.
  size_t Bytes(void* pointer) const { return pieces_.at(static_cast<char*>(pointer)).bytes; }

  // How often the device was asked for memory.
  int64_t allocations() const { return allocations_; }

 private:
  // The memory from its address to that of the next piece of the same chunk, used or free. No two free pieces
  // are neighbours.
  struct Piece {
    char* chunk = nullptr;
    size_t bytes = 0;
    bool used = false;
  };
  using Pieces = std::map<char*, Piece>;

  absl::StatusOr<Pieces::iterator> TakeChunk(size_t bytes);

  const size_t chunk_bytes_;
  Pieces pieces_;
  int64_t allocations_ = 0;
};

// Which tensors have been rounded to bfloat16 for a product, and not written since. A weight serves forward
// and backward, an activation its layer and the weight's gradient, so half of the roundings are saved; each
// such tensor costs half as much memory again. This class knows the memory but does not own it. Not
// thread-safe.
class RoundedOperands {
 public:
  struct Entry {
    uint16_t* memory = nullptr;  // set by the caller
    int64_t capacity = 0;        // in elements
    int64_t elements = 0;        // elements that are still rounded from the tensor's first ones; 0: none
  };

  // The entry of the tensor that begins at x; it stays where it is until Forget.
  Entry* Get(const float* x) { return &entries_[reinterpret_cast<uintptr_t>(x)]; }

  // Called for every write to device memory, in the order of the queue: [begin, begin + bytes) does not hold
  // any more what was rounded.
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
