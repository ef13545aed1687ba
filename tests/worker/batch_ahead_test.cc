#include "worker/batch_ahead.h"

#include <numeric>

#include "catch2/catch.hpp"

namespace weir {
namespace {

Dataset Numbers() {
  std::vector<float> values(200);
  std::iota(values.begin(), values.end(), 0.0f);
  std::vector<int32_t> labels(100);
  std::iota(labels.begin(), labels.end(), 0);
  return Dataset({2}, std::move(values), 1, std::move(labels), 100);
}

void Check(const std::vector<Batch>& batches, const std::vector<int32_t>& examples,
           const BatchAhead::Sizes& sizes) {
  REQUIRE(batches.size() == sizes.size());
  size_t at = 0;
  for (size_t i = 0; i < sizes.size(); ++i) {
    REQUIRE(batches[i].n == static_cast<int64_t>(sizes[i]));
    for (size_t j = 0; j < sizes[i]; ++j, ++at) {
      CHECK(batches[i].labels[j] == examples[at]);
      CHECK(batches[i].features[2 * j] == 2.0f * static_cast<float>(examples[at]));
    }
  }
}

TEST_CASE("Batches are those asked for, whatever was begun before") {
  const Dataset data = Numbers();
  // By the thread, and by the caller.
  BatchAhead ahead(GENERATE(0, BatchAhead::kWorthAThread));
  const std::vector<int32_t> a = {5, 3, 99, 0}, b = {1, 2, 3, 4}, c = {7, 7, 7, 7};
  Check(ahead.Take(data, a, {4}), a, {4});
  ahead.Begin(data, b, {3, 1});
  Check(ahead.Take(data, b, {3, 1}), b, {3, 1});
  // Other examples, and the same examples cut differently.
  ahead.Begin(data, a, {4});
  Check(ahead.Take(data, c, {4}), c, {4});
  ahead.Begin(data, b, {4});
  Check(ahead.Take(data, b, {2, 2}), b, {2, 2});
  // A batch stays until it is taken, or another one is begun.
  Check(ahead.Take(data, b, {4}), b, {4});
  ahead.Begin(data, a, {4});
  ahead.Begin(data, b, {4});
  Check(ahead.Take(data, b, {4}), b, {4});
}

TEST_CASE("What was begun comes without being asked for, and does not touch what was taken") {
  const Dataset data = Numbers();
  BatchAhead ahead(GENERATE(0, BatchAhead::kWorthAThread));
  const std::vector<int32_t> a = {5, 3}, b = {1, 2};
  CHECK(ahead.Peek() == nullptr);
  const std::vector<Batch>& taken = ahead.Take(data, a, {2});
  ahead.Begin(data, b, {1, 1});
  const std::vector<Batch>* begun = nullptr;
  while (begun == nullptr) begun = ahead.Peek();
  Check(*begun, b, {1, 1});
  Check(taken, a, {2});
  const Batch* const first = begun->data();
  CHECK(ahead.Take(data, b, {1, 1}).data() == first);
  CHECK(ahead.Peek() == nullptr);
}

}  // namespace
}  // namespace weir
