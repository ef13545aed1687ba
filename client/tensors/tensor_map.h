#pragma once

#include <cstdint>
#include <utility>
#include <vector>

#include "absl/container/flat_hash_map.h"
#include "absl/functional/function_ref.h"
#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/types/span.h"
#include "client/types.h"
#include "common/codec/value_codec.h"
#include "common/model/model_spec.h"
#include "common/model/partition.h"
#include "proto/parameter_server.pb.h"

namespace weir {

// A gradient in the caller's memory: where its tensors begin, in the model's order. All are of one type.
struct GradientTensors {
  v1::Dtype dtype = v1::F32;
  std::vector<const void*> begin;
};

// Where the elements of each shard lie in a caller's tensors: checks the tensors against the model, and walks
// a shard's local space (common/model/partition.h) over them. Immutable; thread-safe.
class TensorMap {
 public:
  // The model is valid; shards >= 1.
  TensorMap(ModelSpec model, uint32_t shards);

  const ModelSpec& model() const { return model_; }
  const Partition& partition() const { return partition_; }

  // The tensors' memory, in the model's order. Tensors that come in that order need no look-up.
  // InvalidArgument: a tensor is unknown to the model, missing, given twice, or of another length, or a
  // gradient has two types.
  absl::StatusOr<GradientTensors> Match(const std::vector<ConstTensor>& tensors) const;
  absl::StatusOr<std::vector<float*>> Match(const std::vector<MutableTensor>& tensors) const;

  // InvalidArgument: a value is NaN or infinite, or would be in `dtype`; the message names the first one.
  absl::Status CheckFinite(const GradientTensors& tensors, v1::Dtype dtype) const;
  // Like the call above, for the local elements [first, first + count) of a shard.
  absl::Status CheckFinite(uint32_t shard, int64_t first, int64_t count, const GradientTensors& tensors,
                           v1::Dtype dtype) const;

  // The local elements of a shard that belong to a tensor: [first, end).
  std::pair<int64_t, int64_t> LocalRange(uint32_t shard, size_t tensor) const;
  // The inverse of LocalRange(), for the local elements [first, first + count): calls run(tensor, first
  // element in it, count) for each contiguous piece, in order.
  void Walk(uint32_t shard, int64_t first, int64_t count,
            absl::FunctionRef<void(size_t tensor, int64_t at, int64_t n)> run) const;

  // The bytes of the local elements [first, first + count) of a shard.
  std::vector<absl::Span<const char>> Locate(uint32_t shard, int64_t first, int64_t count,
                                             const GradientTensors& tensors) const;
  // Writes the local elements [first, first + count) of a shard from the next `count` of the wire's values.
  void Scatter(uint32_t shard, int64_t first, int64_t count, ValueCursor* values,
               const std::vector<float*>& tensors) const;

 private:
  // values(tensor) returns the tensor's memory as a span.
  template <typename Pointer, typename Tensor, typename Values>
  absl::StatusOr<std::vector<Pointer>> MatchImpl(const std::vector<Tensor>& tensors,
                                                 const Values& values) const;
  // The tensor that holds an element of the model.
  size_t TensorAt(int64_t element) const;
  // The error for the value at `at` in the tensor, which `dtype` cannot carry.
  absl::Status Refusal(size_t tensor, int64_t at, const GradientTensors& tensors, v1::Dtype dtype) const;

  const ModelSpec model_;
  const Partition partition_;
  // offsets_[i]: the position of tensor i's first element; one more at the end.
  std::vector<int64_t> offsets_;
  absl::flat_hash_map<std::string, size_t> by_name_;
};

}  // namespace weir
