#include "ps_server/table/hot_keys.h"

#include <algorithm>
#include <cstdint>
#include <vector>

#include "catch2/catch.hpp"
#include "common/base/random.h"
#include "common/model/key_bucket.h"

namespace weir {
namespace {

void Offer(HotKeys& hot, std::vector<uint64_t> keys) {
  std::sort(keys.begin(), keys.end());
  std::vector<uint64_t> hashes;
  for (const uint64_t key : keys) hashes.push_back(HashKey(key));
  hot.Offer(keys, hashes);
}

std::vector<uint64_t> KeysOf(const std::vector<HotKeys::Key>& hottest) {
  std::vector<uint64_t> keys;
  for (const HotKeys::Key& hot : hottest) keys.push_back(hot.key);
  return keys;
}

TEST_CASE("HotKeys: small pushes are counted whole, in rounds") {
  HotKeys hot;
  for (int push = 0; push < 31; ++push) Offer(hot, {7, 9});
  CHECK(hot.Hottest(10).empty());
  Offer(hot, {7});
  const auto hottest = hot.Hottest(10);
  REQUIRE(KeysOf(hottest) == std::vector<uint64_t>{7, 9});
  CHECK(hottest[0].share == 1);
  CHECK(hottest[1].share == 31.0 / 32);
  CHECK(KeysOf(hot.Hottest(1)) == std::vector<uint64_t>{7});

  SECTION("and what has cooled down goes") {
    for (int push = 0; push < 32; ++push)
      Offer(hot, push < 5 ? std::vector<uint64_t>{9} : std::vector<uint64_t>());
    CHECK(KeysOf(hot.Hottest(10)) == std::vector<uint64_t>{9});
    CHECK(hot.Hottest(10)[0].share == 5.0 / 32);
  }
}

TEST_CASE("HotKeys: of pushes with many keys the hot ones are found, once each slice has had its round") {
  // 1,000 keys a push: 64 slices. Keys 1 to 8 are in every push or three of four, the others in one of 100.
  const auto keys_of = [](RandomStream& random, int push) {
    std::vector<uint64_t> keys = {1, 2, 3, 4};
    if (push % 4 != 0) keys.insert(keys.end(), {5, 6, 7, 8});
    while (keys.size() < 1000) keys.push_back(100 + 100 * (keys.size()) + random.NextBelow(100));
    return keys;
  };
  HotKeys hot, same;
  RandomStream random(RandomKey(1, "hot"), 0), random_of_same(RandomKey(1, "hot"), 0);
  for (int push = 0; push < 64 * 32; ++push) {
    Offer(hot, keys_of(random, push));
    Offer(same, keys_of(random_of_same, push));
  }
  const auto hottest = hot.Hottest(8);
  CHECK(KeysOf(hottest) == std::vector<uint64_t>{1, 2, 3, 4, 5, 6, 7, 8});
  CHECK(hottest[0].share == 1);
  CHECK(hottest[7].share == 0.75);
  const auto all = hot.Hottest(1000);
  CHECK(all.size() == HotKeys::kKept);
  CHECK(all[8].share < 0.25);
  CHECK(KeysOf(same.Hottest(1000)) == KeysOf(all));
}

}  // namespace
}  // namespace weir
