// consistency.staleness_policy: what a shard makes of pushes that were computed from older versions.
#include <memory>
#include <string>
#include <vector>

#include "catch2/catch.hpp"
#include "tests/ps_server/shard/push_whole.h"
#include "tests/ps_server/shard/shard_fixture.h"

namespace weir {
namespace {

using Catch::Contains;
using Policy = v1::StalenessPolicy;
constexpr auto kAsync = v1::ConsistencyConfig::MODE_ASYNC;
constexpr auto kBounded = v1::ConsistencyConfig::MODE_BOUNDED;

void Scale(ShardFixture& f) {
  f.config.mutable_consistency()->mutable_staleness_policy()->set_type(Policy::STALENESS_SCALE);
}

void DropBeyond(ShardFixture& f, uint64_t limit) {
  auto& policy = *f.config.mutable_consistency()->mutable_staleness_policy();
  policy.set_type(Policy::STALENESS_DROP);
  policy.set_limit(limit);
}

TestPush Of(uint32_t worker, uint64_t clock, uint64_t base) {
  TestPush push{worker, clock};
  push.base = base;
  return push;
}

void Log(ShardFixture& f) {
  f.config.mutable_server()->set_durability(v1::ServerConfig::DURABILITY_LOG);
  REQUIRE(f.files->MakeFolder(ShardFixture::kCheckpoints).ok());
  REQUIRE(f.files->SyncFolder("/").ok());
}

void RunBackground(ShardFixture& f) {
  while (!f.background.empty()) {
    const auto work = std::move(f.background.front());
    f.background.pop_front();
    work();
  }
}

TEST_CASE("scale divides a gradient by 1 + its staleness, streamed or staged") {
  for (const auto mode : {kAsync, kBounded}) {
    for (const auto apply : {v1::ServerConfig::APPLY_STREAMED, v1::ServerConfig::APPLY_STAGED}) {
      ShardFixture f(mode, 100);
      Scale(f);
      f.config.mutable_server()->set_apply(apply);
      f.Start();
      CHECK(f.Push(Of(0, 0, 0))->reply().staleness() == 0);
      CHECK(f.Weights() == All(1));
      CHECK(f.Push(Of(1, 0, 0))->reply().staleness() == 1);
      CHECK(f.Weights() == All(1.5f));
      CHECK(f.Push(Of(1, 1, 2))->reply().staleness() == 0);
      CHECK(f.Push(Of(0, 1, 0))->reply().staleness() == 3);
      CHECK(f.Weights() == All(2.75f));
      // A repeat gets the same answer and changes nothing.
      CHECK(f.Push(Of(0, 1, 0))->reply().staleness() == 3);
      CHECK(f.Weights() == All(2.75f));
      CHECK(f.Stats().pushes_dropped() == 0);
    }
  }
}

TEST_CASE("keep, the default, takes a stale push whole") {
  ShardFixture f(kAsync);
  f.Start();
  for (uint64_t clock = 0; clock < 3; ++clock) f.Push(Of(0, clock, 0));
  CHECK(f.Weights() == All(3));
}

TEST_CASE("A push that is overtaken as it arrives is scaled by its staleness when it takes effect") {
  ShardFixture f(kAsync);
  Scale(f);
  f.Start();
  const TestPush slow = Of(0, 0, 0);
  auto arrival = f.Begin(slow);
  REQUIRE(arrival->streamed());
  CHECK(f.Push(Of(1, 0, 0))->reply().outcome() == v1::OK);
  REQUIRE(TakeAll(*arrival, All(1)).ok());
  CHECK(f.Finish(std::move(arrival))->reply().reply.outcome() == v1::SEND_AGAIN);
  CHECK(f.Push(slow)->reply().staleness() == 1);
  CHECK(f.Weights() == All(1.5f));
}

TEST_CASE("scale leaves a buffer's values as they come") {
  for (const auto apply : {v1::ServerConfig::APPLY_STREAMED, v1::ServerConfig::APPLY_STAGED}) {
    ShardFixture f(kAsync);
    Scale(f);
    f.model.tensors[0].kind = TensorKind::kBuffer;
    f.config.mutable_server()->set_apply(apply);
    f.Start();
    f.Push(Of(0, 0, 0));
    f.Push(Of(1, 0, 0));
    CHECK(f.Weights() == All(1));
  }
}

TEST_CASE("scale scales the rows of tables, too, and drop drops them") {
  for (const bool drops : {false, true}) {
    ShardFixture f(kAsync);
    f.AddUsers();  // rows begin at 5
    drops ? DropBeyond(f, 0) : Scale(f);
    f.Start();
    const std::vector<TestRows> rows = {{0, {7}, {1, 2}}};
    f.PushRows(Of(0, 0, 0), rows);
    f.PushRows(Of(1, 0, 0), rows);
    v1::PullRequest pull;
    *pull.mutable_caller() = f.CallerOf(0);
    pull.set_clock(1);
    const auto answer = f.PullRows(pull, {{0, {7}, {}}});
    const float* const values = answer->reply().rows->values.get();
    CHECK(values[0] == (drops ? 4 : 3.5f));
    CHECK(values[1] == (drops ? 3 : 2));
  }
}

TEST_CASE("drop completes a push beyond the limit without an update") {
  ShardFixture f(kAsync);
  DropBeyond(f, 1);
  f.Start();
  f.Push(Of(0, 0, 0));
  CHECK(f.Push(Of(0, 1, 0))->reply().outcome() == v1::OK);
  TestPush late = Of(1, 0, 0);
  late.batch = 5;
  const auto dropped = f.Push(late);
  CHECK(dropped->reply().outcome() == v1::REFUSED);
  CHECK(dropped->reply().staleness() == 2);
  CHECK_THAT(dropped->reply().reason(), Contains("too stale: the shard has made 2 versions") &&
                                            Contains("consistency.staleness_policy.limit is 1"));
  CHECK(f.Weights() == All(2));
  // A repeat gets the same answer. The batch is done, and the worker's next push is taken.
  CHECK(f.Push(late)->reply().staleness() == 2);
  TestPush again = Of(0, 2, 2);
  again.batch = 5;
  CHECK(f.Push(again)->reply().outcome() == v1::DUPLICATE_BATCH);
  CHECK(f.Push(Of(1, 1, 2))->reply().outcome() == v1::OK);
  const v1::ShardStats stats = f.Stats();
  CHECK(stats.pushes_applied() == 3);
  CHECK(stats.pushes_refused() == 2);
  CHECK(stats.pushes_dropped() == 1);
  CHECK(stats.clocks(1).clock() == 2);
}

TEST_CASE("A push that becomes too stale as it arrives is dropped") {
  for (const auto apply : {v1::ServerConfig::APPLY_STREAMED, v1::ServerConfig::APPLY_STAGED}) {
    ShardFixture f(kAsync);
    DropBeyond(f, 0);
    f.config.mutable_server()->set_apply(apply);
    f.Start();
    auto arrival = f.Begin(Of(0, 0, 0));
    f.Push(Of(1, 0, 0));
    REQUIRE(TakeAll(*arrival, All(1)).ok());
    const auto answer = f.Finish(std::move(arrival));
    CHECK(answer->reply().reply.outcome() == v1::REFUSED);
    CHECK(answer->reply().reply.staleness() == 1);
    CHECK(f.Weights() == All(1));
  }
}

TEST_CASE("A gradient that is not finite is refused as that, not as stale") {
  ShardFixture f(kAsync);
  DropBeyond(f, 0);
  f.Start();
  f.Push(Of(0, 0, 0));
  v1::PushRequest header = f.Header(Of(1, 0, 0));
  header.set_refused("a NaN");
  const auto answer = f.PushHeader(header, {});
  CHECK(answer->reply().outcome() == v1::REFUSED);
  CHECK(answer->reply().reason() == "a NaN");
  CHECK(answer->reply().staleness() == 0);
  CHECK(f.Stats().pushes_dropped() == 0);
}

TEST_CASE(
    "With the log staleness counts what is on its way to the disk, and a restored shard has the same bits") {
  for (const bool drops : {false, true}) {
    ShardFixture f(kAsync);
    Log(f);
    drops ? DropBeyond(f, 0) : Scale(f);
    f.Start();
    f.hold_background = true;
    const auto first = f.Push(Of(0, 0, 0)), second = f.Push(Of(1, 0, 0));
    RunBackground(f);
    REQUIRE(first->reply().outcome() == v1::OK);
    // When the second push was decided on, the shard was still at version 0.
    CHECK(second->reply().outcome() == (drops ? v1::REFUSED : v1::OK));
    CHECK(second->reply().staleness() == 1);
    CHECK(f.Weights() == All(drops ? 1 : 1.5f));

    // The next incarnation has another policy, and still what this one has applied.
    f.files->Crash();
    ShardFixture g(kAsync);
    g.files = f.files;
    Log(g);
    g.Create();
    REQUIRE(g.Install() == "");
    g.Members(1, {{0}, {1}});
    CHECK(g.Weights() == f.Weights());
    CHECK(g.Stats().pushes_dropped() == (drops ? 1 : 0));
    const auto again = g.Push(Of(1, 0, 0));
    CHECK(again->reply().outcome() == second->reply().outcome());
    CHECK(again->reply().staleness() == 1);
  }
}

TEST_CASE("A checkpoint keeps the count of dropped pushes") {
  ShardFixture f(kAsync);
  DropBeyond(f, 0);
  f.Start();
  f.Push(Of(0, 0, 0));
  f.Push(Of(1, 0, 0));
  f.TakeCheckpoint(1);
  const v1::Restore restore = ShardFixture::Complete(1, {&f});
  REQUIRE(f.Install(&restore) == "");
  CHECK(f.Stats().pushes_dropped() == 1);
}

}  // namespace
}  // namespace weir
