#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <vector>

#include "absl/types/span.h"
#include "common/threads/mutex.h"

namespace weir {

// Where each key of a batch occurs in it.
struct KeyOccurrences {
  std::vector<uint64_t> keys;  // each once, rising
  // keys[i] is at the positions positions[begin[i]] to positions[begin[i + 1] - 1] of the batch, rising.
  std::vector<uint32_t> begin;
  std::vector<uint32_t> positions;

  absl::Span<const uint32_t> of(size_t i) const {
    return absl::MakeConstSpan(positions.data() + begin[i], begin[i + 1] - begin[i]);
  }
};

// The most keys of a batch.
inline constexpr size_t kMaxBatchKeys = UINT32_MAX;

// `keys`: in any order, at most kMaxBatchKeys.
KeyOccurrences GroupByKey(absl::Span<const uint64_t> keys);

// Sums the gradients of a key that occurs several times: a batch looks a key up once for each of its
// occurrences, and each has a gradient. Sums in float32, in the order of the occurrences, so that the bits do
// not depend on how the rows are then cut over shards.
//
// `occurrences`: of the key; not empty. `gradients`: the batch's, `dim` values for each position. The sum is
// written to `sum`.
void SumDuplicates(absl::Span<const uint32_t> occurrences, const float* gradients, size_t dim, float* sum);

// SumDuplicates() for some keys of a batch, given by their positions in batch.keys. `sums` gets `dim` values
// for each key.
void SumEach(const KeyOccurrences& batch, absl::Span<const uint32_t> keys, const float* gradients, size_t dim,
             float* sums);

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
