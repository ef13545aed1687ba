#pragma once

#include <cstdint>
#include <memory>
#include <vector>

#include "absl/types/span.h"
#include "client/exchange/shared_weights.h"
#include "client/tensors/tensor_map.h"
#include "common/system/float_pool.h"

namespace weir {

// Where the weights of one shard lie for a WeightsView, by chunk unit of local elements: in the shard's
// shared memory, in chunks that this object keeps, or in a buffer of the client. Not thread-safe.
class ShardView {
 public:
  // `elements`: the shard's elements, for which the buffers have room. unit: WireOptions::chunk_unit.
  // in_place: whether this may refer to shared memory.
  ShardView(int64_t elements, int64_t unit, std::shared_ptr<FloatPool<>> buffers, bool in_place);

  // Returns whether weights at this address in shared memory are read there.
  bool MayRefer(const char* values) const;
  // The unit at local position `first` lies at `values`, in the chunk that Keep() gets next.
  void Refer(int64_t first, const char* values);
  void Keep(SharedWeights::Chunk chunk) { chunks_.push_back(std::move(chunk)); }
  // Where the caller writes the unit at `first`.
  float* Copy(int64_t first);
  // Forgets all units and releases their memory.
  void Clear();

  // The value of a local element whose unit is there.
  const float* At(int64_t element) const;
  // Returns whether all weights lie in shared memory.
  bool in_place() const { return buffer_ == nullptr; }

 private:
  int64_t unit_;
  std::shared_ptr<FloatPool<>> buffers_;
  bool may_refer_;
  std::vector<const float*> units_;
  std::vector<SharedWeights::Chunk> chunks_;
  std::shared_ptr<float> buffer_;
};

// The pieces of each tensor, in the model's order; each piece is as long as it can be. All weights must be
// there.
std::vector<std::vector<absl::Span<const float>>> PiecesOf(const TensorMap& tensors,
                                                           const std::vector<ShardView>& shards);

}  // namespace weir
