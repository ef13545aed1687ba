#include <map>
#include <set>
#include <utility>
#include <vector>

#include "catch2/catch.hpp"
#include "client/job/pending_work.h"

namespace weir {
namespace {

using Member = SyncWorkSource::Member;

// 95 examples in batches of 10: the tenth batch has 5. With 4 parts a step: 3 steps, the last with 2 parts.
const JobLength kLength{10, 10, 95};

SyncWorkSource Source(uint32_t worker, uint64_t open_step = 0) {
  return SyncWorkSource(kLength, 4, 3, worker, 100 + worker, open_step);
}

std::vector<Member> Members(const std::vector<uint32_t>& ranks) {
  std::vector<Member> members;
  for (uint32_t rank : ranks) members.push_back({rank, 100 + rank, 0});
  return members;
}

std::vector<uint32_t> TakeAll(SyncWorkSource& source) {
  std::vector<uint32_t> parts;
  while (auto work = source.Next()) {
    CHECK(work->clock == source.open_step());
    parts.push_back(work->part);
  }
  return parts;
}

using Parts = std::vector<uint32_t>;

TEST_CASE("a part is a batch of the job's examples") {
  SyncWorkSource source = Source(1);
  source.SetMembers(Members({0, 1}));
  source.OpenStep(1);
  const auto work = source.Next();
  REQUIRE(work.has_value());
  CHECK(work->clock == 1);
  CHECK(work->part == 1);
  CHECK(work->batch == 5);
  CHECK(work->first_example == 50);
  CHECK(work->examples == 10);
  CHECK_FALSE(work->last_of_clock);
  const auto second = source.Next();
  REQUIRE(second.has_value());
  CHECK(second->part == 3);
  CHECK(second->last_of_clock);
  CHECK_FALSE(source.Next().has_value());
}

TEST_CASE("every part of every step has one owner, and nobody is given parts beyond the end") {
  for (const std::vector<uint32_t>& ranks :
       {Parts{0}, Parts{2}, Parts{0, 1}, Parts{1, 3, 7}, Parts{0, 1, 2, 3, 4}}) {
    std::multiset<uint64_t> batches;
    uint64_t examples = 0;
    for (uint32_t rank : ranks) {
      SyncWorkSource source = Source(rank);
      source.SetMembers(Members(ranks));
      for (uint64_t step = 0; step < 4; ++step) {
        source.OpenStep(step);
        while (auto work = source.Next()) {
          batches.insert(work->batch);
          examples += work->examples;
          CHECK(work->first_example == work->batch * 10);
        }
      }
      CHECK(source.done());
    }
    CHECK(batches == std::multiset<uint64_t>{0, 1, 2, 3, 4, 5, 6, 7, 8, 9});
    CHECK(examples == 95);
  }
}

TEST_CASE("the parts of a worker that died go to the others, and none is given out twice") {
  SyncWorkSource source = Source(0);
  source.SetMembers(Members({0, 1}));
  CHECK(TakeAll(source) == Parts{0, 2});
  source.SetMembers(Members({0}));
  CHECK(TakeAll(source) == Parts{1, 3});
  // The worker comes back: no new work.
  source.SetMembers({{0, 100, 0}, {1, 555, 0}});
  CHECK(TakeAll(source).empty());
  source.OpenStep(1);
  CHECK(TakeAll(source) == Parts{0, 2});
}

TEST_CASE("whatever the membership does within a step, each part is given out at most once") {
  // All sequences of three memberships out of those that hold worker 1.
  const std::vector<Parts> memberships = {{1}, {0, 1}, {1, 2}, {0, 1, 2}, {1, 2, 3}, {0, 1, 2, 3}};
  for (const Parts& a : memberships) {
    for (const Parts& b : memberships) {
      for (const Parts& c : memberships) {
        for (int taken_of_a = 0; taken_of_a <= 4; ++taken_of_a) {
          SyncWorkSource source = Source(1);
          std::multiset<uint32_t> given;
          source.SetMembers(Members(a));
          for (int i = 0; i < taken_of_a; ++i) {
            if (auto work = source.Next()) given.insert(work->part);
          }
          for (const Parts& next : {b, c}) {
            source.SetMembers(Members(next));
            for (uint32_t part : TakeAll(source)) given.insert(part);
          }
          for (uint32_t part = 0; part < 4; ++part) {
            REQUIRE(given.count(part) <= 1);
            // Each part that belongs to this worker at the end was given to it.
            const bool own = c[part % c.size()] == 1;
            if (own) REQUIRE(given.count(part) == 1);
          }
        }
      }
    }
  }
}

TEST_CASE("a member counts from its first clock on") {
  SyncWorkSource old_worker = Source(0), new_worker = Source(1);
  const std::vector<Member> members = {{0, 100, 0}, {1, 101, 1}};
  old_worker.SetMembers(members);
  new_worker.SetMembers(members);
  CHECK(TakeAll(old_worker) == Parts{0, 1, 2, 3});
  CHECK(TakeAll(new_worker).empty());
  old_worker.OpenStep(1);
  new_worker.OpenStep(1);
  CHECK(TakeAll(old_worker) == Parts{0, 2});
  CHECK(TakeAll(new_worker) == Parts{1, 3});
}

TEST_CASE("who is not a member, or only under another incarnation, has no parts") {
  SyncWorkSource source = Source(1);
  CHECK(TakeAll(source).empty());
  source.SetMembers(Members({0, 2}));
  CHECK(TakeAll(source).empty());
  source.SetMembers({{0, 100, 0}, {1, 999, 0}});
  CHECK(TakeAll(source).empty());
}

TEST_CASE("steps do not go back") {
  SyncWorkSource source = Source(0, 1);
  source.SetMembers(Members({0}));
  CHECK(TakeAll(source) == Parts{0, 1, 2, 3});
  source.OpenStep(0);
  source.OpenStep(1);
  CHECK(TakeAll(source).empty());
  CHECK(source.open_step() == 1);
}

TEST_CASE("the last step is short") {
  SyncWorkSource source = Source(0, 2);
  source.SetMembers(Members({0}));
  auto work = source.Next();
  REQUIRE(work.has_value());
  CHECK(work->batch == 8);
  CHECK_FALSE(work->last_of_clock);
  work = source.Next();
  REQUIRE(work.has_value());
  CHECK(work->batch == 9);
  CHECK(work->examples == 5);
  CHECK(work->last_of_clock);
  CHECK_FALSE(source.Next().has_value());
  CHECK_FALSE(source.done());
  source.OpenStep(3);
  CHECK(source.done());
  CHECK_FALSE(source.Next().has_value());
}

TEST_CASE("a range is complete when all of its pushes are acknowledged") {
  RangeWorkSource source(kLength, 5);
  CHECK_FALSE(source.Next().has_value());
  REQUIRE(source.AddRange(3, 8, 2));
  const auto a = source.Next(), b = source.Next();
  REQUIRE((a.has_value() && b.has_value()));
  CHECK(a->clock == 5);
  CHECK(a->batch == 8);
  CHECK(a->first_example == 80);
  CHECK(a->examples == 10);
  CHECK(a->part == 0);
  CHECK(a->last_of_clock);
  CHECK(b->clock == 6);
  CHECK(b->batch == 9);
  CHECK(b->examples == 5);
  CHECK_FALSE(source.Next().has_value());

  CHECK(source.outstanding().size() == 2);
  source.Acknowledge(6);
  // A repeat, and a batch that was never given out, have no effect.
  source.Acknowledge(6);
  source.Acknowledge(99);
  CHECK(source.CompletedRanges().empty());
  source.Acknowledge(5);
  CHECK(source.CompletedRanges() == std::vector<uint64_t>{3});
  CHECK(source.CompletedRanges() == std::vector<uint64_t>{3});
  source.Reported({3});
  CHECK(source.CompletedRanges().empty());
  CHECK(source.outstanding().empty());
}

TEST_CASE("a range with batches that were not given out is not complete") {
  RangeWorkSource source(kLength, 0);
  REQUIRE(source.AddRange(0, 0, 2));
  source.Acknowledge(source.Next()->clock);
  CHECK(source.outstanding().empty());
  CHECK(source.CompletedRanges().empty());
}

TEST_CASE("clocks go on from where the coordinator says") {
  RangeWorkSource source(kLength, 0);
  REQUIRE(source.AddRange(0, 0, 1));
  CHECK(source.Next()->clock == 0);
  source.RaiseClock(7);
  REQUIRE(source.AddRange(1, 1, 2));
  CHECK(source.Next()->clock == 7);
  source.RaiseClock(3);
  CHECK(source.Next()->clock == 8);
}

TEST_CASE("a range that cannot be is refused") {
  RangeWorkSource source(kLength, 0);
  CHECK_FALSE(source.AddRange(0, 0, 0));
  CHECK_FALSE(source.AddRange(0, 10, 1));
  CHECK_FALSE(source.AddRange(0, 9, 2));
  CHECK_FALSE(source.AddRange(0, 1, ~uint64_t{0}));
  CHECK_FALSE(source.Next().has_value());
  CHECK(source.AddRange(0, 9, 1));
  CHECK_FALSE(source.AddRange(0, 0, 1));
}

}  // namespace
}  // namespace weir
