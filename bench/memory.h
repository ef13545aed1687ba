#pragma once

#include <cstddef>
#include <cstdint>
#include <string>
#include <utility>
#include <vector>

#include "absl/types/span.h"
#include "common/optimizer/optimizer.h"

namespace weir::bench {

// Floats on pages of their own, huge pages if the system gives them, all faulted in. All contestants use this
// class, so that all have the same kind of memory.
class Tensor {
 public:
  Tensor(int64_t elements, float value);
  ~Tensor();
  Tensor(Tensor&& other) noexcept;
  Tensor(const Tensor&) = delete;

  float* data() { return data_; }
  const float* data() const { return data_; }
  absl::Span<const float> values() const { return absl::MakeConstSpan(data_, elements_); }
  int64_t elements() const { return elements_; }
  int64_t bytes() const { return elements_ * static_cast<int64_t>(sizeof(float)); }

 private:
  float* data_;
  int64_t elements_;
};

// The tensors of a worker, which pushes the gradient and pulls the weights.
struct WorkerTensors {
  explicit WorkerTensors(int64_t elements) : gradient(elements, 1e-3f), weights(elements, 0) {}
  Tensor gradient, weights;
};

// Returns the share of part `part` of `parts` in `all`: [first, second).
inline std::pair<int64_t, int64_t> PartOf(int64_t all, int64_t part, int64_t parts) {
  return {all * part / parts, all * (part + 1) / parts};
}

// Two versions of a baseline server's weights and slots. Weir's kernels make one from the other.
class Parameters {
 public:
  Parameters(const std::string& optimizer, int64_t elements);

  // Makes elements [first, first + n) of version `1 - from` (0 or 1) from version `from` and the gradient;
  // returns the new weights. Thread-safe for disjoint ranges.
  const float* Apply(int64_t first, int64_t n, const void* gradient, int from) const;
  const float* weights(int version) const { return weights_[version]; }

 private:
  const Optimizer optimizer_;
  std::vector<Tensor> memory_;
  float* weights_[2];
  float* slots_[2][2];  // by slot, by version
};

}  // namespace weir::bench
