#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <vector>

#include "absl/status/statusor.h"
#include "common/system/float_pool.h"
#include "ps_server/shard/versions/slab.h"

namespace weir {

// Memory for the rows of answers. Clients on this machine can read larger ones where they are (SlabSource),
// so these buffers are made once and used again: clients keep what they have mapped. So there is a limit for
// them all; beyond it, and for small answers, the memory is the heap's.
//
// Thread-safe. Memory may outlive this object.
class RowMemory {
 public:
  // Smaller answers are copied in less time than their client takes to say that it has read them. Bytes.
  static constexpr uint64_t kLeastShared = 64 << 10;
  static constexpr uint64_t kMostShared = uint64_t{256} << 20;  // of all buffers together

  explicit RowMemory(SlabSource shared);

  // So many values, any; nullptr: there is no memory.
  std::shared_ptr<float> Take(size_t values);

 private:
  // Buffers have 2^k times this.
  static constexpr uint64_t kSmallest = 1 << 20;
  static constexpr int kSizes = 6;

  using Made = absl::StatusOr<std::shared_ptr<float>>;
  // By k.
  std::vector<std::unique_ptr<FloatPool<Made>>> pools_;
};

}  // namespace weir
