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

}  // namespace weir::cuda
