#pragma once

#include <cstdint>
#include <functional>
#include <string>
#include <vector>

#include "common/checkpoint/safetensors.h"
#include "common/model/model_spec.h"
#include "common/model/partition.h"

// The layout of a shard's file. A shard's local space (common/model/partition.h) holds its elements by rising
// address, so the shard's elements of one tensor are one stretch of that space, and the stretches follow one
// another in the model's order. Pure functions.
namespace weir {

// A stretch of a shard's local space.
struct LocalRange {
  int64_t begin = 0;
  int64_t end = 0;
  int64_t length() const { return end - begin; }
};

// The tensors of a shard's file, in their order: for the weights and then each slot, each tensor of the model
// of which the shard has elements, with one dimension.
struct ShardTensor {
  // 0: the weights; i: slot i - 1.
  size_t array = 0;
  LocalRange range;
  StoredTensor stored;
};
std::vector<ShardTensor> TensorsOfShard(const ModelSpec& model, const Partition& partition, uint32_t shard,
                                        const std::vector<std::string>& slots);
// As the file has them.
std::vector<StoredTensor> StoredOf(const std::vector<ShardTensor>& tensors);

// Calls visit(local, other_local, length), by rising position, for each stretch of `range` of shard `shard`
// that shard `other_shard` of another partition of the same elements has, too.
void ForEachShared(const Partition& partition, uint32_t shard, LocalRange range, const Partition& other,
                   uint32_t other_shard,
                   const std::function<void(int64_t local, int64_t other_local, int64_t length)>& visit);

}  // namespace weir
