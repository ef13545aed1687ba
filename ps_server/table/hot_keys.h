#pragma once

#include <cstddef>
#include <cstdint>
#include <vector>

#include "absl/container/flat_hash_map.h"
#include "absl/types/span.h"

namespace weir {

// Which keys of a table are in the most pushes, as an estimate. A push names a key once, so among thousands
// of keys the hot ones stand out only by coming again. So keys are sampled by their hash: for 32 pushes the
// keys of one slice of all hashes are counted, then those of the next slice, and the keys with the highest
// counts are kept. A slice is so thin that about 16 keys of a push are counted, which costs next to nothing
// beside the rows' update. After as many rounds as there are slices every key has had its turn, and then
// again, so what has cooled down goes.
//
// Follows from the pushes and their order alone. One thread at a time.
class HotKeys {
 public:
  static constexpr uint32_t kPushes = 32;  // of a round
  static constexpr size_t kKept = 64;

  // The keys of one push, each once, with HashKey() of each. Perhaps none.
  void Offer(absl::Span<const uint64_t> keys, absl::Span<const uint64_t> hashes);

  struct Key {
    uint64_t key;
    double share;  // of the pushes of its last round, those that named it
  };
  // The hottest first; of the same share the lowest keys first. At most kKept.
  std::vector<Key> Hottest(size_t most) const;

 private:
  // Of a push.
  static constexpr uint64_t kCounted = 16;
  // Of a round, if its pushes are larger than the one that it began with.
  static constexpr size_t kMostCounted = 4096;

  struct Kept {
    uint64_t key, hash;
    uint32_t pushes;
  };
  void EndRound();

  std::vector<Kept> kept_;  // sorted as Hottest() says
  uint64_t rounds_ = 0;
  uint32_t pushes_ = 0;  // of this round
  // The keys that are counted: those whose hash has `slice_` in the bits of `mask_`.
  uint64_t mask_ = 0, slice_ = 0;
  absl::flat_hash_map<uint64_t, uint32_t> counts_;
};

}  // namespace weir
