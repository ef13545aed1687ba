#include "client/tables/sum_duplicates.h"

#include <map>
#include <vector>

#include "catch2/catch.hpp"
#include "common/base/random.h"

namespace weir {
namespace {

TEST_CASE("SumDuplicates: each key once, rising") {
  const SparseGradient sum =
      SumDuplicates({7, UINT64_MAX, 7, 0}, {1, 2, 10, 20, 100, 200, 1000, 2000}, /*dim=*/2);
  CHECK(sum.keys == std::vector<uint64_t>{0, 7, UINT64_MAX});
  CHECK(sum.values == std::vector<float>{1000, 2000, 101, 202, 10, 20});
}

TEST_CASE("SumDuplicates: in the order of the occurrences") {
  // In any other order the small values would survive, or vanish.
  const float big = 1 << 24;
  CHECK(SumDuplicates({5, 5, 5}, {big, 1, -big}, 1).values == std::vector<float>{0});
  CHECK(SumDuplicates({5, 5, 5}, {big, -big, 1}, 1).values == std::vector<float>{1});
  CHECK(SumDuplicates({5, 5, 5}, {1, big, -big}, 1).values == std::vector<float>{0});
}

TEST_CASE("SumDuplicates: nothing") {
  const SparseGradient sum = SumDuplicates({}, {}, 3);
  CHECK(sum.keys.empty());
  CHECK(sum.values.empty());
}

TEST_CASE("SumDuplicates: many keys, against a loop over a map") {
  constexpr size_t kDim = 5;
  RandomStream random(RandomKey(1, "sum_duplicates_test"), 0);
  std::vector<uint64_t> keys(2000);
  std::vector<float> values(keys.size() * kDim);
  for (uint64_t& key : keys) key = uint64_t{random.NextBelow(300)} * 0x9e3779b97f4a7c15;
  for (float& value : values) value = 2 * UniformFloat(random.Next()) - 1;
  std::map<uint64_t, std::vector<float>> expected;
  for (size_t i = 0; i < keys.size(); ++i) {
    std::vector<float>& row = expected[keys[i]];
    row.resize(kDim);
    for (size_t column = 0; column < kDim; ++column) row[column] += values[i * kDim + column];
  }
  const SparseGradient sum = SumDuplicates(keys, values, kDim);
  std::vector<uint64_t> expected_keys;
  std::vector<float> expected_values;
  for (const auto& [key, row] : expected) {
    expected_keys.push_back(key);
    expected_values.insert(expected_values.end(), row.begin(), row.end());
  }
  CHECK(sum.keys == expected_keys);
  CHECK(sum.values == expected_values);
}

}  // namespace
}  // namespace weir
