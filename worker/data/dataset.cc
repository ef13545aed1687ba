#include "worker/data/dataset.h"

#include <algorithm>
#include <functional>
#include <numeric>

#include "absl/strings/str_cat.h"
#include "common/base/checksums.h"
#include "common/base/random.h"

namespace weir {
namespace {

template <typename T>
uint32_t Extend(uint32_t crc, const std::vector<T>& values) {
  return ExtendCrc32c(crc, values.data(), values.size() * sizeof(T));
}

}  // namespace

void KeyColumn::DropNeedlessOffsets() {
  for (size_t i = 0; i < offsets.size(); ++i) {
    if (offsets[i] != static_cast<int64_t>(i)) return;
  }
  offsets = {};
}

Dataset::Dataset(std::vector<int64_t> shape, Values values, float scale, std::vector<int32_t> labels,
                 int classes)
    : shape_(std::move(shape)),
      elements_(std::accumulate(shape_.begin(), shape_.end(), int64_t{1}, std::multiplies<>())),
      values_(std::move(values)),
      scale_(scale),
      labels_(std::move(labels)),
      classes_(classes) {}

Dataset::Dataset(std::vector<int64_t> shape, Values values, float scale, std::vector<float> targets)
    : Dataset(std::move(shape), std::move(values), scale, std::vector<int32_t>(), 0) {
  targets_ = std::move(targets);
}

std::string Dataset::Fingerprint() const {
  uint32_t features = Extend(ExtendCrc32c(0, &scale_, sizeof(scale_)), shape_);
  std::visit([&features](const auto& values) { features = Extend(features, values); }, values_);
  std::string text = absl::StrCat("features ", absl::Hex(features, absl::kZeroPad8), ", labels ",
                                  absl::Hex(Extend(Extend(0, labels_), targets_), absl::kZeroPad8));
  if (keys_.empty()) return text;
  uint32_t keys = 0;
  for (const KeyColumn& column : keys_) keys = Extend(Extend(keys, column.keys), column.offsets);
  return absl::StrCat(text, ", keys ", absl::Hex(keys, absl::kZeroPad8));
}

int64_t Dataset::bytes_of_example() const {
  int64_t keys = 0;
  for (const KeyColumn& column : keys_) keys += static_cast<int64_t>(column.keys.size());
  return elements_ * static_cast<int64_t>(sizeof(float)) +
         keys * static_cast<int64_t>(sizeof(uint64_t)) / std::max<int64_t>(1, size());
}

void Dataset::Gather(absl::Span<const int32_t> indexes, Batch* batch) const {
  batch->n = static_cast<int64_t>(indexes.size());
  batch->features.resize(indexes.size() * static_cast<size_t>(elements_));
  batch->labels.resize(classes_ == 0 ? 0 : indexes.size());
  batch->targets.resize(classes_ == 0 ? indexes.size() : 0);
  std::visit(
      [&](const auto& values) {
        float* out = batch->features.data();
        for (const int32_t index : indexes) {
          const auto* in = values.data() + index * elements_;
          for (int64_t i = 0; i < elements_; ++i) out[i] = static_cast<float>(in[i]) * scale_;
          out += elements_;
        }
      },
      values_);
  for (size_t i = 0; i < indexes.size(); ++i) {
    if (classes_ == 0) {
      batch->targets[i] = targets_[static_cast<size_t>(indexes[i])];
    } else {
      batch->labels[i] = labels_[static_cast<size_t>(indexes[i])];
    }
  }
  batch->keys.resize(keys_.size());
  for (size_t c = 0; c < keys_.size(); ++c) {
    const KeyColumn& from = keys_[c];
    KeyColumn& to = batch->keys[c];
    to.keys.clear();
    to.offsets.clear();
    if (!from.offsets.empty()) to.offsets.push_back(0);
    for (const int32_t index : indexes) {
      const auto example = static_cast<size_t>(index);
      to.keys.insert(to.keys.end(), from.keys.data() + from.begin(example),
                     from.keys.data() + from.end(example));
      if (!from.offsets.empty()) to.offsets.push_back(static_cast<int64_t>(to.keys.size()));
    }
  }
}

std::vector<int32_t> RandomPermutation(int32_t n, uint64_t key, uint64_t stream) {
  std::vector<int32_t> permutation(static_cast<size_t>(n));
  std::iota(permutation.begin(), permutation.end(), 0);
  RandomStream random(key, stream);
  for (uint32_t i = static_cast<uint32_t>(n); i > 1; --i) {
    std::swap(permutation[i - 1], permutation[random.NextBelow(i)]);
  }
  return permutation;
}

ExampleOrder::ExampleOrder(int32_t examples, uint64_t seed)
    : examples_(examples), key_(RandomKey(seed, "shuffle")) {}

const std::vector<int32_t>& ExampleOrder::Permutation(int64_t epoch) {
  Slot& slot = slots_[static_cast<size_t>(epoch % 2)];
  if (slot.epoch != epoch) slot = {epoch, RandomPermutation(examples_, key_, static_cast<uint64_t>(epoch))};
  return slot.permutation;
}

void ExampleOrder::Fill(int64_t first, absl::Span<int32_t> indexes) {
  while (!indexes.empty()) {
    const std::vector<int32_t>& permutation = Permutation(first / examples_);
    const int64_t at = first % examples_;
    const size_t n = std::min(indexes.size(), static_cast<size_t>(examples_ - at));
    std::copy_n(permutation.begin() + at, n, indexes.begin());
    indexes.remove_prefix(n);
    first += static_cast<int64_t>(n);
  }
}

}  // namespace weir
