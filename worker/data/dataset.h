#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <string>
#include <utility>
#include <variant>
#include <vector>

#include "absl/types/span.h"

namespace weir {

// The keys of some examples in one column: of example i those at [offsets[i], offsets[i + 1]). Without
// offsets, which have one more element than there are examples, each example has one key.
struct KeyColumn {
  std::string name;
  std::vector<uint64_t> keys;
  std::vector<int64_t> offsets;

  size_t begin(size_t example) const {
    return offsets.empty() ? example : static_cast<size_t>(offsets[example]);
  }
  size_t end(size_t example) const { return begin(example + 1); }
  // Takes the offsets out if each example has one key.
  void DropNeedlessOffsets();
};

// Some examples, ready for a model. Each has a label (classification) or a target (regression); the other
// vector is empty.
struct Batch {
  int64_t n = 0;
  std::vector<float> features;  // [n, example shape...]
  std::vector<int32_t> labels;  // [n], in [0, classes)
  std::vector<float> targets;   // [n]
  std::vector<KeyColumn> keys;  // without names
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
  // For regression and, with targets 0 and 1, for binary classification. targets: n.
  Dataset(std::vector<int64_t> shape, Values values, float scale, std::vector<float> targets);

  // Adds columns of keys. Each has the size() of this.
  void AddKeys(std::vector<KeyColumn> keys) { keys_ = std::move(keys); }

  int64_t size() const { return static_cast<int64_t>(labels_.empty() ? targets_.size() : labels_.size()); }
  // The shape of one example: [channels, height, width], or [k] for rows of numbers.
  const std::vector<int64_t>& shape() const { return shape_; }
  const std::vector<KeyColumn>& keys() const { return keys_; }
  // 0 where there are targets.
  int classes() const { return classes_; }
  // The size of the last layer of a model for this data: a logit per class, or one prediction.
  int64_t outputs() const { return classes_ == 0 ? 1 : classes_; }

  // Checksums of all examples in their order: "features 8a3b12ff, labels 5e6f7a8b".
  std::string Fingerprint() const;

  // Of the features and keys of one gathered example, on average.
  int64_t bytes_of_example() const;

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
  std::vector<KeyColumn> keys_;
};

// The numbers 0 .. n-1 in a random order (Fisher and Yates): a pure function of its arguments. n >= 0.
std::vector<int32_t> RandomPermutation(int32_t n, uint64_t key, uint64_t stream);

// The order in which a job sees its training examples: an endless stream of them, which depends on the seed
// only. Position p of the stream is example permutation_e[p mod n] in epoch e = p / n, and each epoch has a
// permutation of its own. Batch b of the job is the positions [b * B, (b + 1) * B), so a batch may cross the
// border of two epochs.
//
// Not thread-safe: this keeps the permutations that it made last.
class ExampleOrder {
 public:
  // examples > 0.
  ExampleOrder(int32_t examples, uint64_t seed);
  // The examples at the positions from `first` on. first >= 0.
  void Fill(int64_t first, absl::Span<int32_t> indexes);

 private:
  const std::vector<int32_t>& Permutation(int64_t epoch);

  const int32_t examples_;
  const uint64_t key_;
  // The epoch e is in slot e % 2, so that going back and forth over one border costs nothing.
  struct Slot {
    int64_t epoch = -1;
    std::vector<int32_t> permutation;
  };
  std::array<Slot, 2> slots_;
};

}  // namespace weir
