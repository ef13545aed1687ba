#include "common/model/partition.h"

#include <algorithm>

namespace weir {

Partition::Partition(int64_t elements, uint32_t shards)
    : elements_(elements), shards_(shards), block_size_(kMaxBlockSize) {
  while (block_size_ > kMinBlockSize && block_size_ * 8 * shards > elements) block_size_ /= 2;
}

int64_t Partition::shard_blocks(uint32_t shard) const {
  return blocks() > shard ? (blocks() - shard - 1) / shards_ + 1 : 0;
}

int64_t Partition::shard_elements(uint32_t shard) const {
  const int64_t n = shard_blocks(shard);
  return n == 0 ? 0 : (n - 1) * block_size_ + block_length(shard, n - 1);
}

int64_t Partition::block_length(uint32_t shard, int64_t i) const {
  return std::min(block_size_, elements_ - block_start(shard, i));
}

uint32_t ShardsFor(int64_t elements, uint32_t servers, int64_t min_bytes) {
  if (min_bytes == 0) return servers;
  const int64_t bytes = elements * static_cast<int64_t>(sizeof(float));
  return static_cast<uint32_t>(std::clamp<int64_t>(bytes / min_bytes, 1, servers));
}

}  // namespace weir
