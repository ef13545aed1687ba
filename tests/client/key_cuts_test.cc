// What is known of a batch's keys when they come again.
#include "client/tables/key_cuts.h"

#include <memory>
#include <vector>

#include "catch2/catch.hpp"
#include "common/model/key_bucket.h"

namespace weir {
namespace {

using Keys = std::vector<uint64_t>;

TEST_CASE("A cut has each key once, and says which are a shard's") {
  constexpr uint32_t kShards = 3;
  KeyCuts cuts(1, kShards);
  const Keys batch = {7, 5, UINT64_MAX, 5, 0, 7, 5};
  const auto cut = cuts.Cut(0, batch);
  CHECK(cut->batch.keys == Keys{0, 5, 7, UINT64_MAX});
  REQUIRE(cut->of_shard.size() == kShards);
  size_t keys = 0;
  for (uint32_t shard = 0; shard < kShards; ++shard) {
    for (uint32_t key : cut->of_shard[shard]) CHECK(ShardOfKey(cut->batch.keys[key], kShards) == shard);
    keys += cut->of_shard[shard].size();
  }
  CHECK(keys == 4);
}

TEST_CASE("The last two batches of a table are not cut again") {
  KeyCuts cuts(2, 2);
  const Keys a = {1, 2, 1}, b = {2, 1, 1}, c = {1, 2};
  const auto cut_a = cuts.Cut(0, a), cut_b = cuts.Cut(0, b);
  // The same keys in another order are another batch.
  CHECK(cut_a != cut_b);
  CHECK(cuts.Cut(0, a) == cut_a);
  CHECK(cuts.Cut(0, b) == cut_b);
  // Another table has its own.
  CHECK(cuts.Cut(1, a) != cut_a);
  const auto cut_c = cuts.Cut(0, c);
  CHECK(cuts.Cut(0, b) == cut_b);
  CHECK(cuts.Cut(0, c) == cut_c);
  CHECK(cuts.Cut(0, a) != cut_a);
  // A batch that begins as another one does.
  CHECK(cuts.Cut(0, Keys{1, 2, 1, 4})->batch.keys == Keys{1, 2, 4});
  CHECK(cuts.Cut(0, Keys()).get() == cuts.Cut(0, Keys()).get());
}

TEST_CASE("The keys of a batch may change after its cut") {
  KeyCuts cuts(1, 1);
  Keys batch = {1, 2};
  const auto cut = cuts.Cut(0, batch);
  batch[1] = 3;
  CHECK(cuts.Cut(0, batch)->batch.keys == Keys{1, 3});
  CHECK(cut->batch.keys == Keys{1, 2});
}

}  // namespace
}  // namespace weir
