#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <vector>

#include "absl/types/span.h"
#include "client/tables/sum_duplicates.h"
#include "common/threads/mutex.h"

namespace weir {

// The keys of a batch of one table, each once, and which of them each shard has.
struct KeyCut {
  KeyOccurrences batch;
  // By shard: its keys, as positions in batch.keys, rising.
  std::vector<std::vector<uint32_t>> of_shard;
};

// Cuts of batches of the job's tables. Most of a cut's time is the sorting of its keys, and a training step
// pushes gradients of the keys whose rows it has read. So the last two cuts of each table are kept, for when
// their keys come again. Two are needed, since the rows of the next step may be asked for before the push of
// this step. Thread-safe.
class KeyCuts {
 public:
  KeyCuts(size_t tables, uint32_t shards) : shards_(shards), kept_(tables) {}

  uint32_t shards() const { return shards_; }

  // table < `tables`. `keys`: in any order, at most kMaxBatchKeys.
  std::shared_ptr<const KeyCut> Cut(uint32_t table, absl::Span<const uint64_t> keys);

 private:
  struct Kept {
    std::vector<uint64_t> keys;  // in the batch's order
    std::shared_ptr<const KeyCut> cut;
  };

  // The kept cut of these keys; null: there is none.
  std::shared_ptr<const KeyCut> Find(uint32_t table, absl::Span<const uint64_t> keys) const;

  const uint32_t shards_;
  mutable Mutex mutex_;
  // By table, the newest first.
  std::vector<std::array<Kept, 2>> kept_ ABSL_GUARDED_BY(mutex_);
};

}  // namespace weir
