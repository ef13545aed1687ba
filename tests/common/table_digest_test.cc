#include "common/model/table_digest.h"

#include <iterator>
#include <map>
#include <string>
#include <utility>
#include <vector>

#include "catch2/catch.hpp"
#include "common/model/key_bucket.h"

namespace weir {
namespace {

// Keys with their values, by bucket and key.
using Rows = std::map<std::pair<uint32_t, uint64_t>, std::vector<float>>;

Rows SomeRows() {
  Rows rows;
  for (uint64_t key = 0; key < 200'000; ++key) {
    rows[{BucketOfHash(HashKey(key)), key}] = {static_cast<float>(key), -1.5f};
  }
  return rows;
}

// Of the rows on so many shards, each of which takes its buckets in rising or in falling order.
std::string DigestOf(const Rows& rows, uint32_t shards, bool falling = false) {
  std::string sum(TableDigest::kBytes, '\0');
  TableDigest digest;
  for (uint32_t shard = 0; shard < shards; ++shard) {
    for (uint32_t i = 0; i < kKeyBuckets; ++i) {
      const uint32_t bucket = falling ? kKeyBuckets - 1 - i : i;
      if (bucket % shards != shard) continue;
      for (auto row = rows.lower_bound({bucket, 0}); row != rows.end() && row->first.first == bucket; ++row) {
        digest.AddRow(row->first.second, row->second);
      }
    }
    REQUIRE(TableDigest::Add(digest.Finish(), sum));
  }
  return sum;
}

TEST_CASE("The digest of a table is the same for any number of shards and any order of buckets") {
  const Rows rows = SomeRows();
  const std::string digest = DigestOf(rows, 1);
  CHECK(digest != std::string(TableDigest::kBytes, '\0'));
  for (uint32_t shards : {1, 2, 3, 7}) {
    CHECK(DigestOf(rows, shards) == digest);
    CHECK(DigestOf(rows, shards, /*falling=*/true) == digest);
  }
}

TEST_CASE("The digest of a table is another one if a key, a value or the number of rows is") {
  const Rows rows = SomeRows();
  const std::string digest = DigestOf(rows, 1);
  Rows other = rows;
  other.begin()->second[1] = -1.25f;
  CHECK(DigestOf(other, 1) != digest);
  other = rows;
  other.erase(other.begin());
  CHECK(DigestOf(other, 1) != digest);
  // Two keys of one bucket change places.
  other = rows;
  auto first = other.begin();
  while (std::next(first)->first.first != first->first.first) ++first;
  std::swap(first->second, std::next(first)->second);
  CHECK(DigestOf(other, 1) != digest);
}

TEST_CASE("The hash of all tables tells them apart by name") {
  const std::string a(TableDigest::kBytes, 'a'), b(TableDigest::kBytes, 'b');
  const std::string hash = TablesSha256({{"x", a}, {"y", b}});
  CHECK(hash.size() == 64);
  CHECK(TablesSha256({{"y", b}, {"x", a}}) == hash);
  CHECK(TablesSha256({{"x", b}, {"y", a}}) != hash);
  CHECK(TablesSha256({{"x", a}}) != hash);
}

TEST_CASE("A digest that has travelled has 32 bytes") {
  std::string sum(TableDigest::kBytes, 's');
  for (const size_t bytes : {0, 31, 33}) CHECK_FALSE(TableDigest::Add(std::string(bytes, 'x'), sum));
  CHECK(sum == std::string(TableDigest::kBytes, 's'));
}

}  // namespace
}  // namespace weir
