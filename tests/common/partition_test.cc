#include "common/model/partition.h"

#include <algorithm>
#include <cstdint>
#include <vector>

#include "catch2/catch.hpp"

namespace weir {
namespace {

TEST_CASE("Every element lies on exactly one shard, and shards are level to one block") {
  for (int64_t elements : {1, 15, 16, 17, 1000, 5000, 65536, 65537, 1000003}) {
    for (uint32_t shards : {1u, 2u, 3u, 4u, 7u, 16u}) {
      CAPTURE(elements, shards);
      const Partition p(elements, shards);
      CHECK((p.block_size() & (p.block_size() - 1)) == 0);
      std::vector<uint8_t> seen(elements, 0);
      int64_t total = 0, least = p.blocks(), most = 0;
      for (uint32_t s = 0; s < shards; ++s) {
        least = std::min(least, p.shard_blocks(s));
        most = std::max(most, p.shard_blocks(s));
        int64_t local = 0;
        for (int64_t i = 0; i < p.shard_blocks(s); ++i) {
          CHECK(local == i * p.block_size());
          for (int64_t e = 0; e < p.block_length(s, i); ++e) ++seen[p.block_start(s, i) + e];
          local += p.block_length(s, i);
        }
        CHECK(local == p.shard_elements(s));
        total += local;
      }
      CHECK(total == elements);
      CHECK(most - least <= 1);
      CHECK(std::count(seen.begin(), seen.end(), 1) == elements);
    }
  }
}

TEST_CASE("Small models still use every shard, large ones full blocks") {
  CHECK(Partition(5000, 4).shard_blocks(3) >= 8);
  CHECK(Partition(25'000'000, 2).block_size() == 65536);
  CHECK(Partition(10, 2).shard_elements(1) == 0);
}

TEST_CASE("A model has as many shards as can have the least bytes each, one at least") {
  CHECK(ShardsFor(/*elements=*/100, /*servers=*/4, /*min_bytes=*/0) == 4);
  CHECK(ShardsFor(1, 8, 0) == 8);
  CHECK(ShardsFor(100, 4, 1024) == 1);
  CHECK(ShardsFor(511, 4, 1024) == 1);
  CHECK(ShardsFor(512, 4, 1024) == 2);
  CHECK(ShardsFor(1023, 4, 1024) == 3);
  CHECK(ShardsFor(1'000'000, 4, 1024) == 4);
  CHECK(ShardsFor(1'000'000, 1, 1024) == 1);
  CHECK(ShardsFor(int64_t{1} << 60, 1000, int64_t{1} << 40) == 1000);
}

}  // namespace
}  // namespace weir
