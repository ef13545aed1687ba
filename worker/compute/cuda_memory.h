#pragma once

#include <cuda_runtime.h>

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <map>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/strings/str_cat.h"
#include "common/cuda/cuda_libraries.h"

namespace weir::cuda {

// The memory of one backend on the current device. Destroyed when no work uses it any more. Not thread-safe.
class DeviceMemory {
 public:
  DeviceMemory() = default;
  DeviceMemory(const DeviceMemory&) = delete;
  DeviceMemory& operator=(const DeviceMemory&) = delete;
  ~DeviceMemory() {
    for (const auto& [pointer, bytes] : bytes_) cudaFree(pointer);
  }

  // Aligned to 256 bytes. ResourceExhausted: what was asked for and what is there.
  absl::StatusOr<void*> Allocate(size_t bytes) {
    void* pointer = nullptr;
    const cudaError_t error = cudaMalloc(&pointer, std::max<size_t>(bytes, 1));
    ++allocations_;
    if (error == cudaSuccess) {
      bytes_[pointer] = bytes;
      return pointer;
    }
    cudaGetLastError();  // reported here; later calls start afresh
    size_t free = 0, total = 0;
    if (error == cudaErrorMemoryAllocation && cudaMemGetInfo(&free, &total) == cudaSuccess) {
      return absl::ResourceExhaustedError(
          absl::StrCat("no memory on the device for ", bytes, " bytes: ", free, " of its ", total,
                       " are free; use a smaller batch or more micro-batches"));
    }
    return ToStatus(error, "cudaMalloc");
  }
  void Free(void* pointer) {
    cudaFree(pointer);
    bytes_.erase(pointer);
  }
  size_t Bytes(void* pointer) const { return bytes_.at(pointer); }
  // How often the device was asked for memory.
  int64_t allocations() const { return allocations_; }

 private:
  std::map<void*, size_t> bytes_;
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
