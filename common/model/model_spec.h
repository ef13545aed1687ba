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

// How version 0 of a tensor is made. It is a pure function of (seed, tensor name, element), so that any shard
// can make its own elements and need not receive them. Or it is kUploaded: a worker uploads the values.
struct Initializer {
  enum class Kind { kConstant, kNormal, kUniform, kUploaded };
  Kind kind = Kind::kConstant;
  // kConstant: the value. kNormal: the standard deviation, around 0. kUniform: l, for [-l, l). kUploaded: 0.
  float value = 0;

  static Initializer Zeros() { return {}; }
  static Initializer Uploaded() { return {Kind::kUploaded, 0}; }
  static Initializer HeNormal(int64_t fan_in);
  static Initializer GlorotUniform(int64_t fan_in, int64_t fan_out);
};

struct TensorSpec {
  std::string name;
  std::vector<int64_t> shape;  // row-major; empty is a scalar
  TensorKind kind = TensorKind::kParameter;
  Initializer init;
  // Other names that the program's model has for this tensor (tied weights). An export holds the tensor under
  // each of its names.
  std::vector<std::string> aliases = {};

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
  // Position of a tensor's first element in the address space. The number of tensors stands for the end:
  // elements().
  // Requires: tensor <= tensors.size().
  int64_t offset(size_t tensor) const;
  // The tensor that holds an element. Skips empty tensors.
  // Requires: element < elements().
  size_t TensorAt(int64_t element) const;
  // "dense_0/weight[12]" for an element of the address space; for messages.
  std::string Describe(int64_t element) const;

  // A worker uploads the initial values of all tensors (of a valid model: else of none).
  bool uploaded() const;

  // Checks the model.
  // Errors: InvalidArgument: no tensors, an empty or repeated name (aliases are names, too), a shape with a
  // number < 1, a model beyond the limits, or one that is uploaded in part.
  absl::Status Validate() const;
  // Over names, shapes, kinds and initializers; equal on every machine. kUploaded counts as zeros: who only
  // reads, and a job that continues from a checkpoint, need not know where the job's initial values came
  // from. Aliases do not count: a model that ties its weights has the tensors of one that does not know the
  // other names.
  uint64_t Hash() const;
  // "" if the two are equal, else the first difference in words, `this` as "expected" and `other` as "got".
  // kUploaded counts as zeros here, too.
  std::string FirstDifference(const ModelSpec& other) const;
};

// Writes version 0 of the elements [first, first + out.size()) of one tensor; zeros where they are uploaded.
void FillInitialValues(uint64_t seed, const TensorSpec& tensor, int64_t first, absl::Span<float> out);

}  // namespace weir
