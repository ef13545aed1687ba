#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <vector>

#include "absl/status/statusor.h"
#include "common/system/float_pool.h"
#include "ps_server/shard/versions/slab.h"

namespace weir {

// Memory for the rows of answers. Clients on this machine can read large answers in place (SlabSource), and
// keep the buffers mapped. So these buffers are made once and reused, up to a limit for all of them. Beyond
// the limit, and for small answers, the memory is the heap's.
//
// Thread-safe. Memory may outlive this object.
class RowMemory {
 public:
  // Bytes. A smaller answer is copied in less time than a client takes to say that it has read it in place.
  static constexpr uint64_t kLeastShared = 64 << 10;
  static constexpr uint64_t kMostShared = uint64_t{256} << 20;  // of all buffers together

  explicit RowMemory(SlabSource shared);

  // Memory for this many values, uninitialized. nullptr: there is no memory.
  std::shared_ptr<float> Take(size_t values);

 private:
  // Buffers have 2^k times this many bytes.
  static constexpr uint64_t kSmallest = 1 << 20;
  static constexpr int kSizes = 6;

  using Made = absl::StatusOr<std::shared_ptr<float>>;
  // By k.
  std::vector<std::unique_ptr<FloatPool<Made>>> pools_;
};

}  // namespace weir
