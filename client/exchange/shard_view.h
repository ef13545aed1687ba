#pragma once

#include <cstdint>
#include <memory>
#include <vector>

#include "absl/types/span.h"
#include "client/exchange/shared_weights.h"
#include "client/tensors/float_buffers.h"
#include "client/tensors/tensor_map.h"

namespace weir {

// Where the weights of one shard lie for a WeightsView, by chunk units of local elements: in shared
// memory of the shard, in chunks that are kept for this, or in a buffer of the client. Not thread-safe.
class ShardView {
 public:
  // `elements` of the shard, which the buffers hold. unit: WireOptions::chunk_unit. in_place: whether shared
  // memory may be referred to.
  ShardView(int64_t elements, int64_t unit, std::shared_ptr<FloatBuffers> buffers, bool in_place);

  // Whether weights that lie there, in shared memory, are to be read there.
  bool MayRefer(const char* values) const;
  // The unit at local position `first` lies there, in memory that Keep() is given next.
  void Refer(int64_t first, const char* values);
  void Keep(SharedWeights::Chunk chunk) { chunks_.push_back(std::move(chunk)); }
  // Where the unit at `first` is to be written to.
  float* Copy(int64_t first);
  // Lets everything go.
  void Clear();

  // Of a local element whose unit is there.
  const float* At(int64_t element) const;
  // All lies in shared memory.
  bool in_place() const { return buffer_ == nullptr; }

 private:
  int64_t unit_;
  std::shared_ptr<FloatBuffers> buffers_;
  bool may_refer_;
  std::vector<const float*> units_;
  std::vector<SharedWeights::Chunk> chunks_;
  std::shared_ptr<float> buffer_;
};

// By tensor of the model, in order: its pieces, as long as they can be. Each shard's weights are all there.
std::vector<std::vector<absl::Span<const float>>> PiecesOf(const TensorMap& tensors,
                                                           const std::vector<ShardView>& shards);

}  // namespace weir
