#include "common/protocol/interval_set.h"

#include <set>

#include "catch2/catch.hpp"
#include "common/base/random.h"

namespace weir {
namespace {

TEST_CASE("An interval set agrees with a plain set, in any order") {
  for (uint64_t seed = 0; seed < 30; ++seed) {
    RandomStream random(RandomKey(seed, "batches"), 0);
    IntervalSet set;
    std::set<uint64_t> plain;
    for (int i = 0; i < 200; ++i) {
      const uint64_t batch = random.NextBelow(120);
      REQUIRE(set.Contains(batch) == (plain.count(batch) > 0));
      set.Insert(batch);
      plain.insert(batch);
    }
    size_t intervals = 0;
    for (uint64_t batch = 0; batch < 121; ++batch) {
      REQUIRE(set.Contains(batch) == (plain.count(batch) > 0));
      if (plain.count(batch) > 0 && plain.count(batch + 1) == 0) ++intervals;
    }
    REQUIRE(set.intervals().size() == intervals);
  }
}

TEST_CASE("What is below a bound is taken out") {
  IntervalSet set;
  set.Insert(2, 5);
  set.Insert(7, 9);
  IntervalSet other;
  CHECK(set.SizeWithout(other) == 5);
  other.Insert(0, 3);
  other.Insert(4, 5);
  other.Insert(8, 20);
  CHECK(set.SizeWithout(other) == 2);
  CHECK(other.SizeWithout(set) == 2 + 11);
  CHECK(set.TakeBelow(2).size() == 0);
  const IntervalSet taken = set.TakeBelow(4);
  CHECK(taken.intervals() == std::map<uint64_t, uint64_t>{{2, 4}});
  CHECK(set.intervals() == std::map<uint64_t, uint64_t>{{4, 5}, {7, 9}});
  CHECK(set.TakeBelow(100).size() == 3);
  CHECK(set.intervals().empty());
}

TEST_CASE("The set of batches of a long job done roughly in order stays small") {
  IntervalSet set;
  for (uint64_t first = 0; first < 100000; first += 4) {
    for (uint64_t i : {2, 0, 3, 1}) set.Insert(first + i);
    REQUIRE(set.intervals().size() == 1);
  }
  CHECK(set.Contains(99999));
  CHECK_FALSE(set.Contains(100000));
}

}  // namespace
}  // namespace weir
