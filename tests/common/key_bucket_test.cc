#include "common/model/key_bucket.h"

#include <algorithm>
#include <cstdint>
#include <vector>

#include "catch2/catch.hpp"

namespace weir {
namespace {

TEST_CASE("The hash of a key never changes: the published numbers of SplitMix64") {
  // The first outputs of the reference implementation (Vigna, splitmix64.c) for these seeds.
  CHECK(HashKey(0) == 0xe220a8397b1dcdaf);
  CHECK(HashKey(1) == 0x910a2dec89025cc1);
  CHECK(HashKey(1234567) == 6457827717110365317u);
  CHECK(BucketOfHash(HashKey(0)) == 0xe220);
}

TEST_CASE("Buckets and shards are level, also for keys with a pattern") {
  for (const uint64_t stride : {uint64_t{1}, uint64_t{1024}, uint64_t{1} << 40, uint64_t{65536} * 3}) {
    std::vector<int> buckets(kKeyBuckets), shards(7);
    constexpr int kPerBucket = 100;
    for (uint64_t i = 0; i < uint64_t{kPerBucket} * kKeyBuckets; ++i) {
      const uint32_t bucket = BucketOfHash(HashKey(i * stride));
      ++buckets[bucket];
      ++shards[ShardOfBucket(bucket, 7)];
    }
    // The standard deviation of a bucket is 10: seven of them.
    CAPTURE(stride);
    CHECK(*std::min_element(buckets.begin(), buckets.end()) > kPerBucket - 70);
    CHECK(*std::max_element(buckets.begin(), buckets.end()) < kPerBucket + 70);
    const int level = kPerBucket * static_cast<int>(kKeyBuckets) / 7;
    CHECK(*std::min_element(shards.begin(), shards.end()) > level - level / 100);
    CHECK(*std::max_element(shards.begin(), shards.end()) < level + level / 100);
  }
}

}  // namespace
}  // namespace weir
