#pragma once

#include <cstddef>
#include <cstdint>
#include <functional>
#include <vector>

#include "client/tensors/tensor_map.h"
#include "common/threads/mutex.h"

namespace weir {

// Tells a caller which tensors of its pull are whole, while others are still on their way. Reports each
// tensor once, when all of its values have landed and all shards have said that the weights are those of a
// published version. From the first report on the versions are settled, and what has landed stays.
//
// Thread-safe. The tensor map outlives this.
class TensorArrivals {
 public:
  // `report` runs without locks, on the threads that call the functions below.
  TensorArrivals(const TensorMap& map, std::function<void(size_t tensor)> report);

  // The shard has confirmed the version of the weights that have landed, and of the weights that will land.
  void Confirm(uint32_t shard);
  // The shard is asked anew. Its confirmation is void, unless the versions are settled.
  void Withdraw(uint32_t shard);
  bool settled() const;

  // The values of a shard's local elements [first, first + count) have landed, or are lost again.
  void Landed(uint32_t shard, int64_t first, int64_t count);
  void Lost(uint32_t shard, int64_t first, int64_t count);

 private:
  const TensorMap& map_;
  const std::function<void(size_t tensor)> report_;

  mutable Mutex mutex_;
  // By shard.
  std::vector<bool> confirmed_ ABSL_GUARDED_BY(mutex_);
  uint32_t unconfirmed_ ABSL_GUARDED_BY(mutex_);
  // By tensor: elements that have not landed.
  std::vector<int64_t> missing_ ABSL_GUARDED_BY(mutex_);
  bool settled_ ABSL_GUARDED_BY(mutex_) = false;
};

}  // namespace weir
