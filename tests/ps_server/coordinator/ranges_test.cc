// bounded and async: which worker gets which batches, and what happens when none are left.
#include <set>
#include <vector>

#include "catch2/catch.hpp"
#include "tests/ps_server/coordinator/coordinator_fixture.h"

namespace weir {
namespace {

constexpr auto kBounded = v1::ConsistencyConfig::MODE_BOUNDED;

bool Idle(const FakeShard& shard, uint32_t worker) {
  const v1::Membership membership = shard.Membership();
  for (const v1::Member& member : membership.members()) {
    if (member.worker() == worker) return member.idle();
  }
  return false;
}

TEST_CASE("Workers get ranges in order until all are done, then the job drains") {
  CoordinatorFixture f(kBounded);
  f.train_examples = 8 * 4;  // 4 ranges of one batch
  f.StartJob();
  std::set<uint64_t> first_batches;
  auto a = f.NextRange(f.members[0]), b = f.NextRange(f.members[1]);
  for (int round = 0; round < 2; ++round) {
    first_batches.insert(a->reply().range().first_batch());
    first_batches.insert(b->reply().range().first_batch());
    a = f.NextRange(f.members[0], {a->reply().range().id()});
    b = f.NextRange(f.members[1], {b->reply().range().id()});
  }
  CHECK(first_batches == std::set<uint64_t>{0, 1, 2, 3});
  CHECK(a->reply().done());
  CHECK(b->reply().done());
  CHECK(f.Status().state() == v1::DRAINING);
  CHECK(f.NextRange(f.members[0])->reply().done());
}

TEST_CASE("One call reports no more ranges than any worker can have had") {
  CoordinatorFixture f(kBounded);
  f.StartJob();
  CHECK(f.NextRange(f.members[0], std::vector<uint64_t>(1025))->status().code() ==
        absl::StatusCode::kInvalidArgument);
  CHECK(f.NextRange(f.members[0], std::vector<uint64_t>(1024))->reply().has_range());
}

TEST_CASE("A lost answer costs nothing: the same range is handed out again") {
  CoordinatorFixture f(kBounded);
  f.StartJob();
  const auto first = f.NextRange(f.members[0]);
  CHECK(f.NextRange(f.members[0])->reply().range().id() == first->reply().range().id());
  const auto second = f.NextRange(f.members[0], {first->reply().range().id()});
  CHECK(second->reply().range().id() != first->reply().range().id());
  CHECK(f.NextRange(f.members[0], {first->reply().range().id()})->reply().range().id() ==
        second->reply().range().id());
}

TEST_CASE("A worker without work is idle: nobody waits for it; a dead one's range brings it back") {
  CoordinatorFixture f(kBounded);
  f.train_examples = 8 * 2;
  f.StartJob();
  const auto a = f.NextRange(f.members[0]), b = f.NextRange(f.members[1]);
  const uint64_t lost = b->reply().range().id();
  for (const auto& shard : f.shards) shard->floor = 5;
  const auto waiting = f.NextRange(f.members[0], {a->reply().range().id()});
  CHECK_FALSE(waiting->there());
  for (const auto& shard : f.shards) CHECK(Idle(*shard, 0));
  CHECK(f.Status().state() == v1::RUNNING);
  f.Leave(f.members[1], false, "crashed");
  REQUIRE(waiting->there());
  CHECK(waiting->reply().range().id() == lost);
  CHECK(waiting->reply().clock() == 5);  // the worker continues at the others' clock
  for (const auto& shard : f.shards) CHECK_FALSE(Idle(*shard, 0));
  CHECK(f.NextRange(f.members[0], {lost})->reply().done());
}

TEST_CASE("A wait for a range ends with an empty answer now and then, and goes on") {
  CoordinatorFixture f(kBounded);
  f.train_examples = 8 * 2;
  f.StartJob();
  const auto a = f.NextRange(f.members[0]), b = f.NextRange(f.members[1]);
  const auto waiting = f.NextRange(f.members[0], {a->reply().range().id()});
  f.Run(absl::Seconds(4), f.members);
  REQUIRE(waiting->there());
  CHECK_FALSE(waiting->reply().has_range());
  CHECK_FALSE(waiting->reply().done());
  const auto again = f.NextRange(f.members[0]);
  CHECK_FALSE(again->there());
  const auto replaced = f.NextRange(f.members[0]);
  CHECK(again->there());
  f.NextRange(f.members[1], {b->reply().range().id()});
  CHECK(replaced->reply().done());
}

TEST_CASE("Only the live incarnation of a worker completes its range") {
  CoordinatorFixture f(kBounded);
  f.train_examples = 8 * 2;
  f.StartJob();
  const auto b = f.NextRange(f.members[1]);
  const uint64_t id = b->reply().range().id();
  f.Leave(f.members[1], false, "crashed");
  const auto again = f.Join(1, 7777);
  CHECK(f.NextRange(again->reply())->reply().range().id() == id);
  CHECK(f.NextRange(f.members[1], {id})->reply().fenced());
  CHECK(f.NextRange(again->reply())->reply().range().id() == id);
}

TEST_CASE("A job's length in examples and in epochs") {
  CoordinatorFixture f(kBounded);
  f.config.mutable_train()->set_epochs(2.5);
  f.train_examples = 30;
  f.StartJob();
  CHECK(f.members[0].total_examples() == 75);
  CHECK(f.members[0].total_batches() == 10);
  CHECK(f.members[0].total_steps() == 5);
  CoordinatorFixture g(kBounded);
  g.config.mutable_train()->clear_epochs();
  g.config.mutable_train()->set_examples(17);
  g.StartJob();
  CHECK(g.members[0].total_examples() == 17);
  CHECK(g.members[0].total_batches() == 3);
}

}  // namespace
}  // namespace weir
