#include "worker/compute/cuda_memory.h"

#include <cuda_runtime.h>

#include <algorithm>
#include <iterator>
#include <limits>

#include "absl/strings/str_cat.h"
#include "common/base/status_macros.h"
#include "common/cuda/cuda_libraries.h"

namespace weir::cuda {

Arena::~Arena() {
  for (const auto& [address, piece] : pieces_) {
    if (address == piece.chunk) cudaFree(address);
  }
}

absl::StatusOr<void*> Arena::Allocate(size_t bytes) {
  if (bytes > std::numeric_limits<size_t>::max() / 2) {
    return absl::ResourceExhaustedError(absl::StrCat("no device has ", bytes, " bytes for a tensor"));
  }
  constexpr size_t kAlignment = 256;
  const size_t whole = std::max(kAlignment, (bytes + kAlignment - 1) / kAlignment * kAlignment);
  auto best = pieces_.end();
  for (auto it = pieces_.begin(); it != pieces_.end(); ++it) {
    const Piece& piece = it->second;
    if (!piece.used && piece.bytes >= whole && (best == pieces_.end() || piece.bytes < best->second.bytes)) {
      best = it;
    }
  }
  if (best == pieces_.end()) {
    WEIR_ASSIGN_OR_RETURN(best, TakeChunk(whole));
  }
  Piece& piece = best->second;
  piece.used = true;
  if (piece.bytes > whole) {
    pieces_[best->first + whole] = {piece.chunk, piece.bytes - whole, /*used=*/false};
    piece.bytes = whole;
  }
  return best->first;
}

absl::StatusOr<Arena::Pieces::iterator> Arena::TakeChunk(size_t bytes) {
  void* memory = nullptr;
  size_t taken = std::max(bytes, chunk_bytes_);
  cudaError_t error = cudaMalloc(&memory, taken);
  if (error == cudaErrorMemoryAllocation && taken > bytes) {
    // A whole chunk is too much; the piece alone may fit.
    taken = bytes;
    error = cudaMalloc(&memory, taken);
  }
  ++allocations_;
  if (error != cudaSuccess) {
    cudaGetLastError();  // reported here; later calls start afresh
    size_t free = 0, total = 0;
    if (error == cudaErrorMemoryAllocation && cudaMemGetInfo(&free, &total) == cudaSuccess) {
      return absl::ResourceExhaustedError(
          absl::StrCat("no memory on the device for ", bytes, " bytes: ", free, " of its ", total,
                       " are free; use a smaller batch or more micro-batches"));
    }
    return ToStatus(error, "cudaMalloc");
  }
  char* const chunk = static_cast<char*>(memory);
  return pieces_.emplace(chunk, Piece{chunk, taken, /*used=*/false}).first;
}

void Arena::Free(void* pointer) {
  if (pointer == nullptr) return;
  auto it = pieces_.find(static_cast<char*>(pointer));
  it->second.used = false;
  const auto is_free = [&](Pieces::iterator piece) {
    return !piece->second.used && piece->second.chunk == it->second.chunk;
  };
  if (const auto next = std::next(it); next != pieces_.end() && is_free(next)) {
    it->second.bytes += next->second.bytes;
    pieces_.erase(next);
  }
  if (it != pieces_.begin() && is_free(std::prev(it))) {
    const auto before = std::prev(it);
    before->second.bytes += it->second.bytes;
    pieces_.erase(it);
    it = before;
  }
  const auto next = std::next(it);
  if (it->first == it->second.chunk && (next == pieces_.end() || next->second.chunk != it->second.chunk)) {
    cudaFree(it->first);
    pieces_.erase(it);
  }
}

}  // namespace weir::cuda
