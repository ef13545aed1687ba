#include "worker/data/digits.h"

#include <algorithm>
#include <cstdlib>
#include <utility>
#include <vector>

#include "absl/strings/string_view.h"
#include "common/base/random.h"
#include "worker/data/example_order.h"
#include "worker/data/idx.h"

namespace weir {
namespace {

const unsigned char kImages[] = {
#include "worker/data/digits/images.inc"
};
const unsigned char kLabels[] = {
#include "worker/data/digits/labels.inc"
};

constexpr int32_t kExamples = 1797;
constexpr int32_t kTrainExamples = 1500;
constexpr size_t kPixels = 64;
constexpr int kClasses = 10;

template <size_t kSize>
std::vector<uint8_t> Unpack(const unsigned char (&bytes)[kSize], size_t expected) {
  auto array = ParseIdx("digits", absl::string_view(reinterpret_cast<const char*>(bytes), kSize));
  if (!array.ok()) std::abort();
  auto* values = std::get_if<std::vector<uint8_t>>(&array->values);
  if (values == nullptr || values->size() != expected) std::abort();
  return std::move(*values);
}

Dataset Take(const std::vector<uint8_t>& images, const std::vector<uint8_t>& labels,
             absl::Span<const int32_t> indexes, float scale) {
  std::vector<uint8_t> values;
  std::vector<int32_t> chosen;
  for (const int32_t index : indexes) {
    const auto image = images.begin() + index * static_cast<int64_t>(kPixels);
    values.insert(values.end(), image, image + kPixels);
    chosen.push_back(labels[static_cast<size_t>(index)]);
  }
  return Dataset({1, 8, 8}, std::move(values), scale, std::move(chosen), kClasses);
}

}  // namespace

DatasetPair LoadDigits(float scale) {
  const std::vector<uint8_t> images = Unpack(kImages, kExamples * kPixels),
                             labels = Unpack(kLabels, kExamples);
  const std::vector<int32_t> order = RandomPermutation(kExamples, RandomKey(0, "digits"), 0);
  const auto all = absl::MakeConstSpan(order);
  return {Take(images, labels, all.first(kTrainExamples), scale),
          Take(images, labels, all.subspan(kTrainExamples), scale)};
}

}  // namespace weir
