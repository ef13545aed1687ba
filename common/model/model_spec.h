#pragma once

#include <cstddef>
#include <cstdint>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/types/span.h"

namespace weir {

enum class TensorKind {
  kParameter,  // a push holds its gradient, which the optimizer applies
  kBuffer,     // a push holds its new value, which is assigned (running statistics)
};

// How version 0 of a tensor is made: a pure function of (seed, tensor name, element), so that any shard can
// make its own elements and need not receive them.
struct Initializer {
  enum class Kind { kConstant, kNormal, kUniform };
  Kind kind = Kind::kConstant;
  // kConstant: the value. kNormal: the standard deviation, around 0. kUniform: l, for [-l, l).
  float value = 0;

  static Initializer Zeros() { return {}; }
  static Initializer HeNormal(int64_t fan_in);
  static Initializer GlorotUniform(int64_t fan_in, int64_t fan_out);
};

struct TensorSpec {
  std::string name;
  std::vector<int64_t> shape;  // row-major; empty is a scalar
  TensorKind kind = TensorKind::kParameter;
  Initializer init;

  int64_t elements() const;
};

// Limits of a model, which are checked before memory is taken for a declared model.
inline constexpr size_t kMaxTensors = 65536;
inline constexpr size_t kMaxTensorName = 1024;  // bytes
inline constexpr size_t kMaxRank = 32;
inline constexpr int64_t kMaxElements = int64_t{1} << 40;

// The ordered list of a model's tensors. Laid end to end in this order they are one address space of
// elements() floats.
struct ModelSpec {
  std::vector<TensorSpec> tensors;

  int64_t elements() const;
  // Position of a tensor's first element in the address space. tensor <= tensors.size(); the size itself
  // gives elements().
  int64_t offset(size_t tensor) const;
  // The tensor that holds an element. element < elements(). Skips empty tensors.
  size_t TensorAt(int64_t element) const;
  // "dense_0/weight[12]" for an element of the address space; for messages.
  std::string Describe(int64_t element) const;

  // InvalidArgument: no tensors, an empty or repeated name, a shape with a number < 1, or a model beyond the
  // limits.
  absl::Status Validate() const;
  // Over names, shapes, kinds and initializers; equal on every machine.
  uint64_t Hash() const;
  // "" if the two are equal, else the first difference in words, `this` as "expected" and `other` as "got".
  std::string FirstDifference(const ModelSpec& other) const;
};

// Writes version 0 of the elements [first, first + out.size()) of one tensor.
void FillInitialValues(uint64_t seed, const TensorSpec& tensor, int64_t first, absl::Span<float> out);

}  // namespace weir
