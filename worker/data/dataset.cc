#include "worker/data/dataset.h"

#include <functional>
#include <numeric>
#include <utility>

namespace weir {

Dataset::Dataset(std::vector<int64_t> shape, Values values, float scale, std::vector<int32_t> labels,
                 int classes)
    : shape_(std::move(shape)),
      elements_(std::accumulate(shape_.begin(), shape_.end(), int64_t{1}, std::multiplies<>())),
      values_(std::move(values)),
      scale_(scale),
      labels_(std::move(labels)),
      classes_(classes) {}

Dataset::Dataset(std::vector<int64_t> shape, Values values, float scale, std::vector<float> targets)
    : shape_(std::move(shape)),
      elements_(std::accumulate(shape_.begin(), shape_.end(), int64_t{1}, std::multiplies<>())),
      values_(std::move(values)),
      scale_(scale),
      targets_(std::move(targets)) {}

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
}

}  // namespace weir
