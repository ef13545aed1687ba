#include "ps_server/coordinator/range_table.h"

#include <map>
#include <set>
#include <vector>

#include "catch2/catch.hpp"
#include "common/random.h"

namespace weir {
namespace {

TEST_CASE("Ranges go out in order, cover every batch once, and the last may be short") {
  RangeTable table(1000, 3);  // 1000 / 48: ranges of 20
  std::vector<int> times(1000);
  uint64_t next = 0;
  while (auto range = table.Take(0)) {
    CHECK(range->first_batch() == next);
    next += range->batches();
    for (uint64_t b = 0; b < range->batches(); ++b) ++times[range->first_batch() + b];
    CHECK_FALSE(table.done());
    table.Complete(range->id(), 0);
    CHECK(table.completed_batches() == next);
  }
  CHECK(table.done());
  CHECK_FALSE(table.Available());
  CHECK(times == std::vector<int>(1000, 1));
}

TEST_CASE("Ranges have 1 to 64 batches, about 16 a worker") {
  CHECK(RangeTable(5, 4).Take(0)->batches() == 1);
  CHECK(RangeTable(1, 1).Take(0)->batches() == 1);
  CHECK(RangeTable(320, 2).Take(0)->batches() == 10);
  CHECK(RangeTable(1'000'000, 2).Take(0)->batches() == 64);
}

TEST_CASE("A worker that asks again gets the range that it has") {
  RangeTable table(100, 1);
  const auto first = table.Take(0);
  CHECK(table.Take(0)->id() == first->id());
  CHECK(table.Take(1)->id() != first->id());
}

TEST_CASE("What a dead worker had goes to the next one who asks; only its holder completes a range") {
  RangeTable table(4, 1);  // ranges of 1
  const auto lost = table.Take(0);
  table.Take(1);
  table.Complete(lost->id(), 1);
  CHECK(table.completed_batches() == 0);
  table.Release(0);
  table.Release(0);
  table.Complete(lost->id(), 0);
  CHECK(table.completed_batches() == 0);
  CHECK(table.Take(2)->id() == lost->id());
  table.Complete(lost->id(), 2);
  table.Complete(lost->id(), 2);
  CHECK(table.completed_batches() == 1);
}

TEST_CASE("Whatever happens to workers, every batch is completed once") {
  for (uint64_t seed = 0; seed < 50; ++seed) {
    RandomStream random(RandomKey(seed, "ranges"), 0);
    const uint64_t batches = 1 + random.NextBelow(500);
    RangeTable table(batches, 1 + random.NextBelow(4));
    std::map<uint32_t, uint64_t> held;
    std::set<uint64_t> completed;
    for (int event = 0; event < 100000 && !table.done(); ++event) {
      const uint32_t worker = random.NextBelow(4);
      if (random.NextBelow(4) == 0) {
        table.Release(worker);
        held.erase(worker);
      } else if (held.count(worker) > 0) {
        table.Complete(held[worker], worker);
        REQUIRE(completed.insert(held[worker]).second);
        held.erase(worker);
      } else if (const auto range = table.Take(worker)) {
        for (const auto& [other, id] : held) REQUIRE(id != range->id());
        held[worker] = range->id();
      } else {
        REQUIRE_FALSE(table.Available());
      }
    }
    CHECK(table.done());
    CHECK(table.completed_batches() == batches);
  }
}

}  // namespace
}  // namespace weir
