#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <vector>

#include "absl/types/span.h"
#include "client/tensors/residuals.h"
#include "client/tensors/tensor_map.h"
#include "client/tensors/wire_options.h"
#include "common/threads/mutex.h"

namespace weir {

// The gradient of one push whose type on the wire is quantised. Each chunk is encoded once and kept until the
// push has ended: however often it is sent, its bytes are the same. Thread-safe. The tensor map and the
// tensors outlive this.
class EncodedGradient {
 public:
  // Where the push's residuals come from and go to.
  struct Feedback {
    std::shared_ptr<Residuals> residuals;  // null: no error feedback
    uint32_t part = 0;
    uint64_t clock = 0;
    std::vector<uint64_t> incarnations;  // of the weights, by shard
  };
  EncodedGradient(const TensorMap& map, GradientTensors tensors, const WireOptions& wire, Feedback feedback);
  // Puts back the residuals of the shards that have not answered.
  ~EncodedGradient();
  EncodedGradient(const EncodedGradient&) = delete;
  EncodedGradient& operator=(const EncodedGradient&) = delete;

  // Encodes the chunk, unless it is encoded already. False: a value, with its residual, is NaN, infinite, or
  // above kMostBlockValue.
  bool Encode(uint32_t shard, size_t chunk);
  // The bytes of a chunk that Encode() has encoded; valid as long as this.
  absl::Span<const char> Chunk(uint32_t shard, size_t chunk) const;
  // The shard has answered. took_effect: with the gradient in the weights.
  void Answered(uint32_t shard, bool took_effect);

 private:
  struct OfShard {
    int64_t elements = 0;
    std::unique_ptr<char[]> bytes;
    std::vector<bool> encoded;  // by chunk
    size_t missing = 0;         // chunks that are not encoded
    bool answered = false;
    std::shared_ptr<float> carried;  // the residual before; null: zeros
    std::shared_ptr<float> left;     // and after; null: no error feedback
  };

  Residuals::Key KeyOf(uint32_t shard) const {
    return {feedback_.part, shard, feedback_.clock, feedback_.incarnations[shard]};
  }
  size_t ChunkAt(size_t chunk) const { return chunk * chunk_bytes_; }
  int64_t LengthOf(const OfShard& of, size_t chunk) const;

  const TensorMap& map_;
  const GradientTensors tensors_;
  const WireType type_;
  const int64_t chunk_elements_;
  const size_t chunk_bytes_;
  const Feedback feedback_;
  mutable Mutex mutex_;
  std::vector<OfShard> shards_ ABSL_GUARDED_BY(mutex_);
};

}  // namespace weir
