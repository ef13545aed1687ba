#pragma once

#include <cstddef>
#include <memory>
#include <vector>

#include "common/sync/mutex.h"

namespace weir {

// Memory in slabs of huge pages, which is handed out in pieces and freed all together. A slab's pages come
// from the system one by one, as pieces of them are first written to, so that a huge page is taken, and
// cleared, for all partitions of a table in turn and not for all at once. Thread-safe.
class SlabPool {
 public:
  // Lives as long as the pool; with any contents. Aligned to 64 bytes, and to any power of two up to 2 MiB of
  // which all sizes that were asked for are multiples.
  char* Take(size_t bytes) ABSL_LOCKS_EXCLUDED(mutex_);

 private:
  Mutex mutex_;
  std::vector<std::shared_ptr<void>> slabs_ ABSL_GUARDED_BY(mutex_);
  size_t left_ ABSL_GUARDED_BY(mutex_) = 0;  // of the last slab, in bytes
  char* next_ ABSL_GUARDED_BY(mutex_) = nullptr;
};

// What several RecordMaps take their memory from. Apart, since a map asks each for sizes of another kind.
struct RecordPools {
  SlabPool records, indexes;
};

}  // namespace weir
