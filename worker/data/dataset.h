#pragma once

#include <cstdint>
#include <variant>
#include <vector>

#include "absl/types/span.h"

namespace weir {

// Some examples, ready for a model. Each has a label (classification) or a target (regression); the other
// vector is empty.
struct Batch {
  int64_t n = 0;
  std::vector<float> features;  // [n, example shape...]
  std::vector<int32_t> labels;  // [n], in [0, classes)
  std::vector<float> targets;   // [n]
};

// Examples of one shape with their labels or targets, all in memory. Immutable, so that threads may share
// them.
class Dataset {
 public:
  // Bytes stay bytes and are scaled when they are gathered: this takes a quarter of the memory and gives the
  // same floats.
  using Values = std::variant<std::vector<uint8_t>, std::vector<float>>;

  // For classification. values: n examples of `shape`, end to end, each worth value * scale. labels: n, in
  // [0, classes).
  Dataset(std::vector<int64_t> shape, Values values, float scale, std::vector<int32_t> labels, int classes);
  // For regression. targets: n.
  Dataset(std::vector<int64_t> shape, Values values, float scale, std::vector<float> targets);

  int64_t size() const { return static_cast<int64_t>(labels_.empty() ? targets_.size() : labels_.size()); }
  // The shape of one example: [channels, height, width], or [k] for rows of numbers.
  const std::vector<int64_t>& shape() const { return shape_; }
  // 0 for regression.
  int classes() const { return classes_; }
  // The size of the last layer of a model for this data: a logit per class, or one prediction.
  int64_t outputs() const { return classes_ == 0 ? 1 : classes_; }

  // Of the features of one gathered example.
  int64_t bytes_of_example() const { return elements_ * static_cast<int64_t>(sizeof(float)); }

  // Copies the examples at `indexes` into `batch`, whose memory is reused. Indexes are in [0, size()).
  void Gather(absl::Span<const int32_t> indexes, Batch* batch) const;

 private:
  std::vector<int64_t> shape_;
  int64_t elements_ = 1;  // of one example
  Values values_;
  float scale_;
  std::vector<int32_t> labels_;
  std::vector<float> targets_;
  int classes_ = 0;
};

}  // namespace weir
