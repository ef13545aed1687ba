#include "worker/data/dataset.h"

#include <algorithm>
#include <numeric>
#include <vector>

#include "catch2/catch.hpp"

namespace weir {
namespace {

std::vector<int32_t> Fill(ExampleOrder* order, int64_t first, size_t n) {
  std::vector<int32_t> indexes(n, -1);
  order->Fill(first, absl::MakeSpan(indexes));
  return indexes;
}

TEST_CASE("Each epoch has every example once, in an order of its own") {
  ExampleOrder order(1000, 1);
  std::vector<int32_t> all(1000), before(1000);
  std::iota(all.begin(), all.end(), 0);
  for (int64_t epoch = 0; epoch < 4; ++epoch) {
    std::vector<int32_t> indexes = Fill(&order, epoch * 1000, 1000);
    CHECK(indexes != before);
    CHECK(indexes != all);
    before = indexes;
    std::sort(indexes.begin(), indexes.end());
    CHECK(indexes == all);
  }
}

TEST_CASE("The order depends on the seed only, not on how it is asked for") {
  constexpr size_t kPositions = 37 * 5 + 3;
  ExampleOrder whole(37, 7), pieces(37, 7), backwards(37, 7), other(37, 8);
  const std::vector<int32_t> want = Fill(&whole, 0, kPositions);
  std::vector<int32_t> got;
  for (size_t n = 1; got.size() < kPositions; ++n) {
    const auto piece = Fill(&pieces, static_cast<int64_t>(got.size()), std::min(n, kPositions - got.size()));
    got.insert(got.end(), piece.begin(), piece.end());
  }
  CHECK(got == want);
  for (size_t p = kPositions; p-- > 0;) got[p] = Fill(&backwards, static_cast<int64_t>(p), 1)[0];
  CHECK(got == want);
  CHECK(Fill(&other, 0, kPositions) != want);
}

TEST_CASE("A batch may be longer than the data, and positions may be far out") {
  ExampleOrder order(3, 1);
  const std::vector<int32_t> far = Fill(&order, (int64_t{1} << 40) * 3, 7);
  CHECK(far[0] + far[1] + far[2] == 3);
  CHECK(far[3] + far[4] + far[5] == 3);
  ExampleOrder one(1, 1);
  CHECK(Fill(&one, 5, 3) == std::vector<int32_t>{0, 0, 0});
}

TEST_CASE("Permutations are uniform") {
  // Each of the six orders of three comes about as often as the others.
  std::vector<int> counts(27);
  for (uint64_t stream = 0; stream < 6000; ++stream) {
    const auto p = RandomPermutation(3, 5, stream);
    ++counts[static_cast<size_t>(p[0] * 9 + p[1] * 3 + p[2])];
  }
  for (const size_t order : {5u, 7u, 11u, 15u, 19u, 21u}) CHECK(std::abs(counts[order] - 1000) < 150);
}

TEST_CASE("The order is the published one") {
  // A change here changes every result that was ever reported.
  ExampleOrder order(10, 1);
  CHECK(Fill(&order, 0, 10) == std::vector<int32_t>{0, 4, 8, 7, 5, 2, 6, 3, 9, 1});
}

}  // namespace
}  // namespace weir
