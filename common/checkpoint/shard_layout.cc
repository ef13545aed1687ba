#include "common/checkpoint/shard_layout.h"

#include <algorithm>

#include "absl/strings/str_cat.h"

namespace weir {
namespace {

// The number of a shard's elements below an address: the address's local position, if the shard has it.
int64_t LocalPosition(const Partition& partition, uint32_t shard, int64_t address) {
  const int64_t block = address / partition.block_size();
  const int64_t rounds = block / partition.shards();
  const int64_t turn = block % partition.shards();
  const int64_t whole_blocks = rounds + (turn > shard ? 1 : 0);
  return whole_blocks * partition.block_size() + (turn == shard ? address % partition.block_size() : 0);
}

}  // namespace

std::vector<ShardTensor> TensorsOfShard(const ModelSpec& model, const Partition& partition, uint32_t shard,
                                        const std::vector<std::string>& slots) {
  std::vector<ShardTensor> out;
  uint64_t offset = 0;
  for (size_t array = 0; array <= slots.size(); ++array) {
    const std::string prefix = array == 0 ? "" : absl::StrCat("weir.slot/", slots[array - 1], "/");
    int64_t address = 0;
    for (const TensorSpec& tensor : model.tensors) {
      const int64_t end = address + tensor.elements();
      const LocalRange range{LocalPosition(partition, shard, address), LocalPosition(partition, shard, end)};
      address = end;
      if (range.length() == 0) continue;
      const auto length = static_cast<uint64_t>(range.length());
      out.push_back(
          {array,
           range,
           {absl::StrCat(prefix, tensor.name), TensorType::kF32, {length}, offset, length * sizeof(float)}});
      offset += length * sizeof(float);
    }
  }
  return out;
}

std::vector<StoredTensor> StoredOf(const std::vector<ShardTensor>& tensors) {
  std::vector<StoredTensor> stored;
  for (const ShardTensor& tensor : tensors) stored.push_back(tensor.stored);
  return stored;
}

void ForEachShared(const Partition& partition, uint32_t shard, LocalRange range, const Partition& other,
                   uint32_t other_shard,
                   const std::function<void(int64_t local, int64_t other_local, int64_t length)>& visit) {
  const int64_t size = partition.block_size(), other_size = other.block_size();
  for (int64_t local = range.begin; local < range.end;) {
    const int64_t block_end = std::min(range.end, (local / size + 1) * size);
    int64_t address = partition.block_start(shard, local / size) + local % size;
    while (local < block_end) {
      const int64_t length = std::min(block_end - local, other_size - address % other_size);
      const int64_t other_block = address / other_size;
      if (other_block % other.shards() == other_shard) {
        visit(local, other_block / other.shards() * other_size + address % other_size, length);
      }
      local += length;
      address += length;
    }
  }
}

}  // namespace weir
