#pragma once

#include <sys/mman.h>

#include <algorithm>
#include <cstddef>
#include <functional>
#include <memory>
#include <new>
#include <type_traits>
#include <utility>
#include <vector>

#include "absl/status/statusor.h"
#include "common/threads/mutex.h"

namespace weir {

// Memory of the heap. Its pages come from the system when they are first written.
inline std::shared_ptr<float> HeapFloats(size_t elements) {
  return {new float[elements], std::default_delete<float[]>()};
}

// Memory of this process with any contents, in huge pages where it spans one and the system allows them; at
// least 64-byte aligned. Its pages come from the system when they are first written. The last reference frees
// it.
inline std::shared_ptr<void> AllocateInHugePages(size_t bytes) {
  constexpr size_t kHugePage = 2 << 20;
  bytes = std::max<size_t>(bytes, 1);
  const size_t alignment = bytes >= kHugePage ? kHugePage : 64;
  void* const memory = ::operator new(bytes, std::align_val_t(alignment));
  // A hint, which the system may ignore.
  if (alignment == kHugePage) madvise(memory, bytes, MADV_HUGEPAGE);
  return std::shared_ptr<void>(
      memory, [alignment](void* done) { ::operator delete(done, std::align_val_t(alignment)); });
}

// Recycles buffers of one size: each is made, and its pages are faulted in, once. So once there are as many
// as are in use at a time, none is made. Thread-safe.
//
// A buffer returns to the pool with its last copy, on any thread. It may outlive the pool. All memory is
// freed together, with the pool or with the last buffer, whichever is later.
//
// Made: std::shared_ptr<float>, if there always is memory, or an absl::StatusOr of one, whose error Take()
// returns.
template <typename Made = std::shared_ptr<float>>
class FloatPool {
 public:
  // Makes a buffer of this many floats, which lives as long as the pointer; not null. Called by Take(), by
  // several threads at once if Take() is, without locks.
  using Source = std::function<Made(size_t elements)>;

  FloatPool(size_t elements, Source source)
      : elements_(elements), source_(std::move(source)), free_(std::make_shared<Free>()) {}
  FloatPool(const FloatPool&) = delete;
  FloatPool& operator=(const FloatPool&) = delete;

  size_t elements() const { return elements_; }

  // Adds a buffer to give out.
  void Add(std::shared_ptr<float> buffer) { free_->Add(std::move(buffer)); }

  // A buffer with any contents, the one that returned last if one is free.
  Made Take() {
    std::shared_ptr<float> buffer = free_->Take();
    if (buffer == nullptr) {
      Made made = source_(elements_);
      if constexpr (std::is_same_v<Made, std::shared_ptr<float>>) {
        buffer = std::move(made);
      } else {
        if (!made.ok()) return made;
        buffer = *std::move(made);
      }
    }
    float* const values = buffer.get();
    return std::shared_ptr<float>(
        values, [free = free_, buffer = std::move(buffer)](float*) mutable { free->Add(std::move(buffer)); });
  }

 private:
  struct Free {
    void Add(std::shared_ptr<float> buffer) {
      MutexLock lock(mutex);
      buffers.push_back(std::move(buffer));
    }
    std::shared_ptr<float> Take() {
      MutexLock lock(mutex);
      if (buffers.empty()) return nullptr;
      std::shared_ptr<float> buffer = std::move(buffers.back());
      buffers.pop_back();
      return buffer;
    }

    Mutex mutex;
    std::vector<std::shared_ptr<float>> buffers ABSL_GUARDED_BY(mutex);
  };

  const size_t elements_;
  const Source source_;
  const std::shared_ptr<Free> free_;
};

}  // namespace weir
