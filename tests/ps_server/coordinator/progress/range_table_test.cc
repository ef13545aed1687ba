#include <map>
#include <set>
#include <vector>

#include "catch2/catch.hpp"
#include "common/base/random.h"
#include "ps_server/coordinator/progress/job_progress.h"

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

Intervals Batches(const std::vector<std::pair<uint64_t, uint64_t>>& intervals) {
  Intervals out;
  for (const auto& [begin, end] : intervals) {
    v1::Interval* interval = out.Add();
    interval->set_begin(begin);
    interval->set_end(end);
  }
  return out;
}

TEST_CASE("What is done already is not handed out") {
  RangeTable table(100, 1, Batches({{0, 10}, {12, 13}, {90, 100}}));  // ranges of 6
  CHECK(table.completed_batches() == 21);
  std::vector<std::pair<uint64_t, uint64_t>> ranges;
  while (const auto range = table.Take(0)) {
    ranges.emplace_back(range->first_batch(), range->batches());
    table.Complete(range->id(), 0);
  }
  CHECK(ranges[0] == std::pair<uint64_t, uint64_t>(10, 2));
  CHECK(ranges[1] == std::pair<uint64_t, uint64_t>(13, 6));
  CHECK(ranges.back() == std::pair<uint64_t, uint64_t>(85, 5));
  CHECK(table.done());
  CHECK(RangeTable(100, 1, Batches({{0, 100}})).done());
  // The intervals of a longer job.
  CHECK(RangeTable(100, 1, Batches({{0, 400}})).done());
  CHECK(RangeTable(100, 1, Batches({{200, 400}})).completed_batches() == 0);
}

TEST_CASE("Nothing beyond the work's end is handed out, and the job may end there") {
  RangeTable table(100, 1);
  table.SetWorkEnd(8);
  const auto take_all = [&](uint32_t worker) {
    uint64_t end = 0;
    while (const auto range = table.Take(worker)) {
      end = range->first_batch() + range->batches();
      table.Complete(range->id(), worker);
    }
    return end;
  };
  CHECK(take_all(0) == 8);
  CHECK_FALSE(table.Available());
  CHECK_FALSE(table.done());
  table.SetWorkEnd(20);
  CHECK(table.Available());
  REQUIRE(table.Take(1).has_value());
  CHECK(take_all(0) == 20);
  CHECK_FALSE(table.Available());
  // A worker's returned ranges come before the end.
  table.Release(1);
  CHECK(table.Available());
  take_all(0);
  CHECK(table.completed_batches() == 20);
  table.EndHere();
  CHECK(table.done());
  CHECK_FALSE(table.Available());
}

TEST_CASE("A job that ends here ends with what workers hold, as far as they complete it") {
  RangeTable table(64, 2);
  const auto first = table.Take(0), second = table.Take(1);
  REQUIRE(first->batches() == 2);
  table.Complete(first->id(), 0);
  const auto third = table.Take(0);
  CHECK(table.EndHere());
  CHECK_FALSE(table.Available());
  CHECK_FALSE(table.done());
  // The worker may ask again for what it has.
  CHECK(table.Take(1)->id() == second->id());
  table.Release(1);
  CHECK_FALSE(table.Take(1).has_value());
  CHECK_FALSE(table.done());
  table.Complete(third->id(), 0);
  CHECK(table.done());
  CHECK(table.completed_batches() == 4);

  RangeTable all_out(1, 1);
  const auto only = all_out.Take(0);
  CHECK_FALSE(all_out.EndHere());
  all_out.Release(0);
  CHECK(all_out.Take(0)->id() == only->id());
}

TEST_CASE("Held by all is what every one holds") {
  const auto held = [](const std::vector<Intervals>& holders) {
    std::vector<std::pair<uint64_t, uint64_t>> out;
    for (const auto& interval : HeldByAll(holders)) out.emplace_back(interval.begin(), interval.end());
    return out;
  };
  using Intervals = std::vector<std::pair<uint64_t, uint64_t>>;
  CHECK(held({Batches({{0, 5}, {7, 9}})}) == Intervals{{0, 5}, {7, 9}});
  CHECK(held({Batches({{0, 5}, {7, 9}}), Batches({{3, 8}})}) == Intervals{{3, 5}, {7, 8}});
  CHECK(held({Batches({{0, 5}}), Batches({{5, 8}})}) == Intervals{});
  CHECK(held({Batches({{0, 5}}), Batches({})}) == Intervals{});
  CHECK(held({Batches({{0, 5}}), Batches({{0, 2}, {2, 9}})}) == Intervals{{0, 5}});
  CHECK(held({Batches({{9, 5}})}) == Intervals{});
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
