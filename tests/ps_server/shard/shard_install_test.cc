// A second incarnation of a shard in the same process, and the calls, pushes and versions of the first.
#include <string>
#include <vector>

#include "catch2/catch.hpp"
#include "common/codec/wire_codec.h"
#include "tests/ps_server/shard/push_whole.h"
#include "tests/ps_server/shard/shard_fixture.h"

namespace weir {
namespace {

using Catch::Contains;
constexpr auto kSync = v1::ConsistencyConfig::MODE_SYNC;
constexpr auto kBounded = v1::ConsistencyConfig::MODE_BOUNDED;
constexpr auto kAsync = v1::ConsistencyConfig::MODE_ASYNC;

AnswerPtr<PushAnswer> Finish(ShardFixture& f, std::unique_ptr<PushArrival> arrival) {
  REQUIRE(TakeAll(*arrival, All(1)).ok());
  return f.Finish(std::move(arrival));
}

TEST_CASE(
    "sync: a second Install fences everybody; what was staged or arriving is not of the new incarnation") {
  ShardFixture f(kSync);
  f.Start();
  f.Push({0, 0, 0});
  f.Push({1, 0, 1});
  f.Commit(0, {0, 1});
  const auto held = f.Pull(0, 1);
  f.Pin(3, 1000);
  const auto staged = f.Push({0, 1, 0});
  const auto parked = f.Pull(0, 2);
  const auto ahead = f.Push({1, 2, 0});
  auto arrival = f.Begin({1, 1, 1});
  CHECK_FALSE(parked->there());

  REQUIRE(f.Install() == "");
  CHECK(f.incarnation() == ShardFixture::kIncarnation + 1);
  CHECK(staged->reply().outcome() == v1::FENCED);
  CHECK(ahead->reply().outcome() == v1::FENCED);
  CHECK(parked->reply().header.outcome() == v1::FENCED);
  CHECK(parked->times == 1);
  // A reader of a version may continue, but is asked to stop.
  CHECK(held->reply().version->weights.get()[0] == 1);
  CHECK(held->reply().version->revoked);
  v1::PullRequest pinned;
  *pinned.mutable_caller() = f.CallerOf(0);
  pinned.set_pin(3);
  CHECK(f.PullRequest(pinned)->status().code() == absl::StatusCode::kFailedPrecondition);

  // As long as there is no membership, every caller is refused.
  CHECK(f.Push({0, 0, 0})->status().code() == absl::StatusCode::kUnavailable);
  CHECK(f.Pull(0, 0)->status().code() == absl::StatusCode::kUnavailable);
  CHECK(Finish(f, std::move(arrival))->status().code() == absl::StatusCode::kUnavailable);
  arrival = nullptr;
  f.Members(2, {{0, 200}, {1, 201}});
  CHECK(f.Push({1, 1, 1})->reply().outcome() == v1::FENCED);
  CHECK(f.Pull(0, 1)->reply().header.outcome() == v1::FENCED);
  CHECK(f.Stats().version().count() == 0);
  CHECK(f.Stats().version().incarnation() == f.incarnation());
  CHECK(f.Stats().pushes_applied() == 0);
  TestPush push{0, 0, 0, 200};
  push.epoch = 2;
  f.Push(push);
  push = {1, 0, 1, 201};
  push.epoch = 2;
  const auto last = f.Push(push);
  f.Commit(0, {0, 1});
  CHECK(last->reply().outcome() == v1::OK);
  CHECK(last->reply().version().incarnation() == f.incarnation());
}

TEST_CASE(
    "A push that was arriving at an Install has no effect, streamed or staged, fenced or still a member") {
  ShardFixture f(kAsync);
  const bool streamed = GENERATE(true, false);
  const bool member = GENERATE(true, false);
  if (!streamed) f.config.mutable_server()->set_apply(v1::ServerConfig::APPLY_STAGED);
  f.Start();
  f.Push({0, 0});
  auto arrival = f.Begin({0, 1});
  REQUIRE(arrival->streamed() == streamed);
  const auto parked = f.Pull(1, 3);
  REQUIRE(f.Install() == "");
  CHECK(parked->reply().header.outcome() == v1::FENCED);
  // The sender of the arriving push learns of it at once.
  CHECK(arrival->overtaken() == streamed);
  f.Members(2, {{0, member ? 100u : 300u, 0}, {1}});
  // The next push of the same incarnation is at the same clock.
  TestPush first{0, 0};
  first.incarnation = member ? 100 : 300;
  CHECK(f.Push(first)->reply().outcome() == v1::OK);
  const auto answer = Finish(f, std::move(arrival));
  CHECK(answer->reply().reply.outcome() == (member ? v1::STALE_VERSION : v1::FENCED));
  CHECK(f.Weights() == All(1));
  first.clock = member ? 2 : 1;
  CHECK(f.Push(first)->reply().outcome() == v1::OK);
  CHECK(f.Weights() == All(2));
}

TEST_CASE("Of two Installs the later one counts, whichever is done first") {
  ShardFixture f(kAsync);
  f.Start();
  f.Push({0, 0});
  f.TakeCheckpoint(1);
  v1::ControlMessage message;
  *message.mutable_install() = f.install;
  *message.mutable_install()->mutable_restore() = ShardFixture::Complete(1, {&f});
  f.hold_background = true;
  f.Control(message);
  CHECK(f.shard->elements() == 0);
  CHECK(f.Push({0, 1})->status().code() == absl::StatusCode::kUnavailable);
  message.mutable_install()->clear_restore();
  f.Control(message);
  REQUIRE(f.background.size() == 2);
  const bool in_order = GENERATE(true, false);
  f.background[in_order ? 0 : 1]();
  f.background[in_order ? 1 : 0]();
  REQUIRE(f.Reports(v1::ShardReport::kInstalled).size() == 1);
  f.Members(2, {{0}, {1}});
  CHECK(f.Weights() == All(0));
}

TEST_CASE(
    "A checkpoint that was being written at an Install is not reported, and the next one can be taken") {
  ShardFixture f(kAsync);
  f.Start();
  f.hold_background = true;
  f.TakeCheckpoint(1);
  f.hold_background = false;
  REQUIRE(f.Install() == "");
  f.Members(2, {{0}, {1}});
  f.background.front()();
  f.background.clear();
  CHECK(f.Reports(v1::ShardReport::kCheckpoint).empty());
  f.TakeCheckpoint(2);
  CHECK(f.Written().version().incarnation() == f.incarnation());
}

TEST_CASE("What cannot be restored is an error, and the shard can be installed after it") {
  ShardFixture f(kAsync);
  f.Start();
  f.Push({0, 0});
  v1::Restore restore;
  restore.set_step(99);
  CHECK_THAT(f.Install(&restore), Contains("/checkpoints/step-00000099"));
  CHECK(f.shard->elements() == 0);
  CHECK(f.Pull(0, 0)->status().code() == absl::StatusCode::kUnavailable);
  REQUIRE(f.Install() == "");
  f.Members(2, {{0}, {1}});
  CHECK(f.Weights() == All(0));
}

TEST_CASE(
    "With backup workers a step is reported as soon as it can be committed, and with each further part") {
  ShardFixture f(kSync);
  f.install.set_parts(4);
  f.config.mutable_consistency()->set_backup_workers(2);
  f.Start();
  const auto staged = [&] {
    std::vector<std::vector<uint32_t>> out;
    for (const auto& report : f.Reports(v1::ShardReport::kStaged)) {
      out.emplace_back(report.staged().parts().begin(), report.staged().parts().end());
    }
    return out;
  };
  using Parts = std::vector<std::vector<uint32_t>>;
  TestPush push{0, 0, 3};
  const auto a = f.Push(push);
  CHECK(staged() == Parts());
  push.part = 1;
  const auto b = f.Push(push);
  CHECK(staged() == Parts{{1, 3}});
  push.part = 0;
  push.bad_element = 2;
  const auto c = f.Push(push);
  push.bad_element.reset();
  const auto reports = f.Reports(v1::ShardReport::kStaged);
  REQUIRE(reports.size() == 1);
  CHECK(reports[0].staged().parts_size() == 3);
  REQUIRE(reports[0].staged().refused_parts_size() == 1);
  CHECK(reports[0].staged().refused_parts(0) == 0);
  // One push arrives while the step is committed without it.
  push.part = 2;
  auto arrival = f.Begin(push);
  f.Commit(0, {3});
  CHECK(f.Weights() == All(1));
  CHECK(a->reply().outcome() == v1::OK);
  CHECK(b->reply().outcome() == v1::REFUSED);
  CHECK_THAT(b->reply().reason(), Contains("without part 1"));
  CHECK(c->reply().outcome() == v1::REFUSED);
  CHECK(Finish(f, std::move(arrival))->reply().reply.outcome() == v1::REFUSED);
  push.part = 1;
  CHECK(f.Push(push)->reply().outcome() == v1::REFUSED);
  push.part = 3;
  CHECK(f.Push(push)->reply().outcome() == v1::OK);
  CHECK(f.Weights() == All(1));
  CHECK(f.Pull(0, 1)->reply().header.version().count() == 1);
}

}  // namespace
}  // namespace weir
