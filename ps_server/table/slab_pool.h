#pragma once

#include <cstddef>
#include <future>
#include <memory>
#include <vector>

#include "common/threads/mutex.h"

namespace weir {

// Memory in slabs of huge pages, which is handed out in pieces and freed all together. The pages of the first
// slab come from the system as pieces of them are first written to: a small table takes what it needs. Each
// later slab is made, with all its pages, on a thread of its own while the one before is in use. A huge page
// takes the system 0.1 ms, and some milliseconds where a virtual machine has to get it from its host first;
// no update should wait for that. Thread-safe.
class SlabPool {
 public:
  // Bytes.
  static constexpr size_t kSlab = 32 << 20;

  // Lives as long as the pool; with any contents. Aligned to 64 bytes, and to any power of two up to 2 MiB of
  // which all sizes that were asked for are multiples.
  char* Take(size_t bytes) ABSL_LOCKS_EXCLUDED(mutex_);

 private:
  // Begins to make the next slab.
  void MakeNext() ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);

  Mutex mutex_;
  std::vector<std::shared_ptr<void>> slabs_ ABSL_GUARDED_BY(mutex_);
  // The slab that is being made, or is made. Not valid: none.
  std::future<std::shared_ptr<void>> coming_ ABSL_GUARDED_BY(mutex_);
  size_t left_ ABSL_GUARDED_BY(mutex_) = 0;  // of the last slab, in bytes
  char* next_ ABSL_GUARDED_BY(mutex_) = nullptr;
};

// The pools that several RecordMaps take their memory from. Records and indexes have a pool each, since a map
// asks for sizes of different kinds.
struct RecordPools {
  SlabPool records, indexes;
};

}  // namespace weir
