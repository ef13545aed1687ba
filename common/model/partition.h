#pragma once

#include <algorithm>
#include <cstdint>

namespace weir {

// How the address space of a model (common/model/model_spec.h) is cut over shards: into blocks of equal size,
// block b on shard b mod S. The sizes of shards differ by one block at most, and every layer's traffic uses
// every shard. Pure, immutable, cheap to copy.
//
// A shard's blocks, in their order, form its local space: block b starts at local position (b div S) *
// block_size(). Only the model's last block may be short, and it is the last of its shard.
class Partition {
 public:
  static constexpr int64_t kMaxBlockSize = 65536;
  static constexpr int64_t kMinBlockSize = 16;

  // elements >= 1, shards >= 1. The block size is the largest power of two within the two limits that still
  // gives each shard 8 blocks. In a tiny model a shard may have no block.
  Partition(int64_t elements, uint32_t shards)
      : elements_(elements), shards_(shards), block_size_(kMaxBlockSize) {
    while (block_size_ > kMinBlockSize && block_size_ * 8 * shards > elements) block_size_ /= 2;
  }

  int64_t elements() const { return elements_; }
  uint32_t shards() const { return shards_; }
  int64_t block_size() const { return block_size_; }
  int64_t blocks() const { return (elements_ + block_size_ - 1) / block_size_; }

  int64_t shard_blocks(uint32_t shard) const {
    return blocks() > shard ? (blocks() - shard - 1) / shards_ + 1 : 0;
  }
  int64_t shard_elements(uint32_t shard) const {
    const int64_t n = shard_blocks(shard);
    return n == 0 ? 0 : (n - 1) * block_size_ + block_length(shard, n - 1);
  }

  // The position in the address space of the first element of a shard's i-th block, and the block's length.
  int64_t block_start(uint32_t shard, int64_t i) const { return (i * shards_ + shard) * block_size_; }
  int64_t block_length(uint32_t shard, int64_t i) const {
    return std::min(block_size_, elements_ - block_start(shard, i));
  }

 private:
  int64_t elements_;
  uint32_t shards_;
  int64_t block_size_;
};

// The number of `servers` that hold a shard of a model: as many as can hold `min_bytes` of float32 weights
// each, and at least one; 0 bytes: all. A small model's step costs little but its messages, one each way for
// every shard, so it is faster on fewer shards. elements >= 1, servers >= 1.
inline uint32_t ShardsFor(int64_t elements, uint32_t servers, int64_t min_bytes) {
  if (min_bytes == 0) return servers;
  const int64_t bytes = elements * static_cast<int64_t>(sizeof(float));
  return static_cast<uint32_t>(std::clamp<int64_t>(bytes / min_bytes, 1, servers));
}

}  // namespace weir
