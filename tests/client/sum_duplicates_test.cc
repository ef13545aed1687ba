#include <algorithm>
#include <map>
#include <numeric>
#include <vector>

#include "catch2/catch.hpp"
#include "client/tables/key_cuts.h"
#include "common/base/random.h"

namespace weir {
namespace {

std::vector<float> Sums(const std::vector<uint64_t>& keys, const std::vector<float>& gradients, size_t dim) {
  const KeyOccurrences batch = GroupByKey(keys);
  std::vector<uint32_t> all(batch.keys.size());
  std::iota(all.begin(), all.end(), 0);
  std::vector<float> sums(batch.keys.size() * dim);
  SumEach(batch, all, gradients.data(), dim, sums.data());
  // The same for the first key alone.
  if (!all.empty()) {
    std::vector<float> sum(dim);
    SumDuplicates(batch.of(0), gradients.data(), dim, sum.data());
    CHECK(std::equal(sum.begin(), sum.end(), sums.begin()));
  }
  return sums;
}

TEST_CASE("GroupByKey: each key once, rising, with its positions") {
  const KeyOccurrences batch = GroupByKey({7, UINT64_MAX, 7, 0});
  CHECK(batch.keys == std::vector<uint64_t>{0, 7, UINT64_MAX});
  CHECK(batch.of(0) == std::vector<uint32_t>{3});
  CHECK(batch.of(1) == std::vector<uint32_t>{0, 2});
  CHECK(batch.of(2) == std::vector<uint32_t>{1});
}

TEST_CASE("GroupByKey: no keys") {
  const KeyOccurrences batch = GroupByKey({});
  CHECK(batch.keys.empty());
  CHECK(batch.begin == std::vector<uint32_t>{0});
  CHECK(batch.positions.empty());
}

TEST_CASE("SumDuplicates: in the order of the occurrences") {
  CHECK(Sums({7, UINT64_MAX, 7, 0}, {1, 2, 10, 20, 100, 200, 1000, 2000}, /*dim=*/2) ==
        std::vector<float>{1000, 2000, 101, 202, 10, 20});
  // In any other order the small values would survive, or vanish.
  const float big = 1 << 24;
  CHECK(Sums({5, 5, 5}, {big, 1, -big}, 1) == std::vector<float>{0});
  CHECK(Sums({5, 5, 5}, {big, -big, 1}, 1) == std::vector<float>{1});
  CHECK(Sums({5, 5, 5}, {1, big, -big}, 1) == std::vector<float>{0});
}

TEST_CASE("keys that occur several times, against a loop over a map") {
  constexpr size_t kDim = 5;
  // Few keys and many, which are sorted in two ways; of all their bits, of the lowest, and of the highest.
  const auto n = GENERATE(as<size_t>(), 1, 300, 1024, 1025, 5000);
  const auto factor = GENERATE(as<uint64_t>(), 0x9e3779b97f4a7c15, 1, uint64_t{1} << 55);
  RandomStream random(RandomKey(1, "sum_duplicates_test"), 0);
  std::vector<uint64_t> keys(n);
  std::vector<float> values(keys.size() * kDim);
  for (uint64_t& key : keys) key = uint64_t{random.NextBelow(300)} * factor;
  for (float& value : values) value = 2 * UniformFloat(random.Next()) - 1;
  std::map<uint64_t, std::vector<float>> sums;
  std::map<uint64_t, std::vector<uint32_t>> positions;
  for (size_t i = 0; i < keys.size(); ++i) {
    positions[keys[i]].push_back(static_cast<uint32_t>(i));
    std::vector<float>& row = sums[keys[i]];
    row.resize(kDim);
    for (size_t column = 0; column < kDim; ++column) row[column] += values[i * kDim + column];
  }
  const KeyOccurrences batch = GroupByKey(keys);
  REQUIRE(batch.keys.size() == positions.size());
  size_t i = 0;
  std::vector<float> expected;
  for (const auto& [key, at] : positions) {
    CHECK(batch.keys[i] == key);
    CHECK(batch.of(i++) == at);
    expected.insert(expected.end(), sums[key].begin(), sums[key].end());
  }
  CHECK(Sums(keys, values, kDim) == expected);
}

}  // namespace
}  // namespace weir
