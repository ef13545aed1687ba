#pragma once

#include <cstdint>
#include <vector>

#include "absl/container/flat_hash_map.h"
#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "absl/types/span.h"
#include "client/client.h"
#include "common/model_spec.h"
#include "common/partition.h"
#include "common/thread_pool.h"
#include "proto/parameter_server.pb.h"

namespace weir {

// Where in a caller's tensors the elements of each shard lie: checks the tensors against the model, and walks
// a shard's local space (common/partition.h) over them. Immutable; thread-safe.
class TensorMap {
 public:
  // The model is valid; shards >= 1.
  TensorMap(ModelSpec model, uint32_t shards);

  const ModelSpec& model() const { return model_; }
  const Partition& partition() const { return partition_; }

  // The tensors' memory, in the model's order. InvalidArgument: a tensor that the model does not have, one
  // that is missing or given twice, another length.
  absl::StatusOr<std::vector<const float*>> Match(const std::vector<ConstTensor>& tensors) const;
  absl::StatusOr<std::vector<float*>> Match(const std::vector<MutableTensor>& tensors) const;

  // InvalidArgument: some value is NaN or infinite; names the first. `tensors` is in the model's order.
  absl::Status CheckFinite(const std::vector<const float*>& tensors, ThreadPool& threads) const;

  // Where the local elements [first, first + count) of a shard lie in the tensors (in the model's order).
  std::vector<absl::Span<const float>> Locate(uint32_t shard, int64_t first, int64_t count,
                                              const std::vector<const float*>& tensors) const;
  // Writes them from the wire's little-endian values, in pieces of any length and alignment, together `count`
  // values.
  void Scatter(uint32_t shard, int64_t first, int64_t count, absl::Span<const absl::string_view> pieces,
               v1::Dtype dtype, const std::vector<float*>& tensors) const;

 private:
  template <typename Tensor, typename Pointer>
  absl::StatusOr<std::vector<Pointer>> MatchImpl(const std::vector<Tensor>& tensors) const;
  // The one that holds an element of the model.
  size_t TensorAt(int64_t element) const;
  // Calls run(tensor, first element in it, count) for each contiguous piece, in order.
  template <typename Run>
  void Walk(uint32_t shard, int64_t first, int64_t count, const Run& run) const;

  const ModelSpec model_;
  const Partition partition_;
  // offsets_[i]: the position of tensor i's first element; one more at the end.
  std::vector<int64_t> offsets_;
  absl::flat_hash_map<std::string, size_t> by_name_;
};

}  // namespace weir
