// A shard in sync: parts are staged, and applied when the coordinator commits their step.
#include <iterator>
#include <limits>
#include <string>
#include <vector>

#include "catch2/catch.hpp"
#include "tests/ps_server/shard/shard_fixture.h"

namespace weir {
namespace {

using Catch::Contains;
constexpr auto kSync = v1::ConsistencyConfig::MODE_SYNC;

std::vector<v1::ShardReport> Staged(ShardFixture& f) { return f.Reports(v1::ShardReport::kStaged); }

TestPush Part(uint64_t step, uint32_t part, float value = 1) {
  TestPush push{part % 2, step, part};
  push.value = value;
  return push;
}

TEST_CASE("A sync push is acknowledged when its step is committed, not before") {
  ShardFixture f(kSync);
  f.Start();
  const auto a = f.Push(Part(0, 0, 1));
  CHECK(Staged(f).empty());
  const auto next = f.Pull(0, 1);
  const auto b = f.Push(Part(0, 1, 3));
  const auto staged = Staged(f);
  REQUIRE(staged.size() == 1);
  CHECK(staged[0].staged().step() == 0);
  CHECK(staged[0].staged().refused_parts_size() == 0);
  CHECK_FALSE((a->there() || b->there() || next->there()));
  CHECK(f.Weights() == All(0));
  f.Commit(0, {0, 1});
  REQUIRE((a->there() && b->there() && next->there()));
  CHECK(a->reply().outcome() == v1::OK);
  CHECK(a->reply().version().count() == 1);
  CHECK(a->reply().staleness() == 0);
  CHECK(next->reply().header.version().count() == 1);
  CHECK(f.Weights() == All(2));
}

TEST_CASE("A step counts distinct parts: a repeat does not complete it, and is answered like the first") {
  ShardFixture f(kSync);
  f.Start();
  const auto first = f.Push(Part(0, 0, 4));
  TestPush again = Part(0, 0, 1000);
  const auto repeat = f.Push(again);
  again.worker = 1;  // a different worker computed the part again
  const auto other = f.Push(again);
  CHECK(Staged(f).empty());
  CHECK_FALSE((first->there() || repeat->there() || other->there()));
  f.Push(Part(0, 1, 2));
  CHECK(Staged(f).size() == 1);
  f.Push(Part(0, 1, 2));
  CHECK(Staged(f).empty());  // reported only once
  f.Commit(0, {0, 1});
  for (const auto& answer : {first, repeat, other}) {
    REQUIRE(answer->times == 1);
    CHECK(answer->reply().outcome() == v1::OK);
  }
  CHECK(f.Weights() == All(3));
  CHECK(f.shard->counters().pushes_applied == 2);
}

TEST_CASE("The parts of past steps are answered from the record; long past ones are only told so") {
  ShardFixture f(kSync);
  f.Start();
  for (uint64_t step = 0; step < 50; ++step) {
    f.Push(Part(step, 0));
    TestPush second = Part(step, 1);
    if (step == 48) second.bad_element = 7;
    f.Push(second);
    step == 48 ? f.Commit(step, {0}) : f.Commit(step, {0, 1});
  }
  CHECK(f.Weights() == All(50));
  CHECK(f.Push(Part(49, 1))->reply().version().count() == 50);
  const auto ok = f.Push(Part(48, 0));
  CHECK(ok->reply().outcome() == v1::OK);
  CHECK(ok->reply().version().count() == 49);  // the first version that holds it
  CHECK(f.Push(Part(48, 1))->reply().outcome() == v1::REFUSED);
  CHECK(f.Push(Part(50 - 2 * kHoldWindow, 0))->reply().outcome() == v1::OK);
  CHECK(f.Push(Part(0, 0))->reply().outcome() == v1::STEP_PAST);
  CHECK(f.Weights() == All(50));
}

TEST_CASE("A part of the next step is held while the commit is on its way") {
  ShardFixture f(kSync);
  f.Start();
  const auto early = f.Push(Part(1, 1, 5));
  CHECK_FALSE(early->there());
  CHECK(f.Push(Part(2, 0))->status().code() == absl::StatusCode::kInvalidArgument);
  f.Push(Part(0, 0));
  f.Push(Part(0, 1));
  Staged(f);
  f.Commit(0, {0, 1});
  CHECK_FALSE(early->there());  // staged now
  f.Push(Part(1, 0, 1));
  REQUIRE(Staged(f).size() == 1);
  f.Commit(1, {0, 1});
  CHECK(early->reply().outcome() == v1::OK);
  CHECK(f.Weights() == All(4));
}

TEST_CASE("A part that is not finite is reported, and the step is committed without it") {
  ShardFixture f(kSync);
  f.Start();
  TestPush bad = Part(0, 1);
  bad.bad_element = 12;
  const auto refused = f.Push(bad);
  const auto good = f.Push(Part(0, 0, 6));
  const auto staged = Staged(f);
  REQUIRE(staged.size() == 1);
  REQUIRE(staged[0].staged().refused_parts_size() == 1);
  CHECK(staged[0].staged().refused_parts(0) == 1);
  CHECK_THAT(staged[0].staged().reason(), Contains("w[12]"));
  CHECK_FALSE(refused->there());
  f.Commit(0, {0});
  CHECK(good->reply().outcome() == v1::OK);
  REQUIRE(refused->there());
  CHECK(refused->reply().outcome() == v1::REFUSED);
  CHECK_THAT(refused->reply().reason(), Contains("w[12]") && Contains("at clock 0"));
  CHECK(refused->reply().version().count() == 1);
  CHECK(f.Weights() == All(6));
}

TEST_CASE("A part that says that it is to be refused is reported, and waits for its step") {
  ShardFixture f(kSync);
  f.Start();
  v1::PushRequest header = f.Header(Part(0, 1));
  header.set_refused("worker 1 (worker:1): the gradient of w[3] is NaN at clock 0");
  const auto refused = f.PushHeader(header, Part(0, 1));
  // If a different worker has computed the part, the part is refused, too.
  const auto other = f.Push(Part(0, 1));
  CHECK_FALSE(refused->there());
  const auto good = f.Push(Part(0, 0, 6));
  const auto staged = Staged(f);
  REQUIRE(staged.size() == 1);
  CHECK(staged[0].staged().parts_size() == 2);
  REQUIRE(staged[0].staged().refused_parts_size() == 1);
  CHECK(staged[0].staged().refused_parts(0) == 1);
  CHECK(staged[0].staged().reason() == header.refused());
  f.Commit(0, {0});
  CHECK(good->reply().outcome() == v1::OK);
  for (const auto& push : {refused, other}) {
    CHECK(push->reply().outcome() == v1::REFUSED);
    CHECK(push->reply().reason() == header.refused());
  }
  CHECK(f.Weights() == All(6));
  CHECK(f.PushHeader(header, Part(0, 1))->reply().outcome() == v1::REFUSED);
}

TEST_CASE("A push's weight is its part's in the mean; without one its examples are") {
  ShardFixture f(kSync);
  f.Start();
  const auto push = [&](uint64_t step, uint32_t part, float value, double weight) {
    v1::PushRequest header = f.Header(Part(step, part, value));
    header.set_weight(weight);
    return f.PushHeader(header, Part(step, part, value));
  };
  push(0, 0, 8, 0.5);
  push(0, 1, 4, 1.5);
  f.Commit(0, {0, 1});
  CHECK(f.Weights() == All(5));
  // Whoever computes the part again says the same, and changes nothing.
  push(1, 0, 8, 3 * static_cast<double>(f.Header(Part(1, 1)).examples()));
  push(1, 0, 8, 1000);
  push(1, 1, 4, 0);
  f.Commit(1, {0, 1});
  CHECK(f.Weights() == All(12));
  // Alone in a step, any weight is all of it.
  push(2, 0, 3, 1e-300);
  push(2, 1, 7, 1e30);
  f.Commit(2, {0});
  CHECK(f.Weights() == All(15));
}

TEST_CASE("A weight that cannot be is refused, whoever sends it") {
  const auto mode = GENERATE(v1::ConsistencyConfig::MODE_SYNC, v1::ConsistencyConfig::MODE_BOUNDED,
                             v1::ConsistencyConfig::MODE_ASYNC);
  ShardFixture f(mode);
  f.Start();
  const auto refused = [&](double weight) {
    v1::PushRequest header = f.Header(Part(0, 0));
    header.set_weight(weight);
    const absl::Status status = f.PushHeader(header, Part(0, 0))->status();
    CHECK(status.code() == absl::StatusCode::kInvalidArgument);
    return std::string(status.message());
  };
  for (const double weight :
       {-1.0, 1.1e30, std::numeric_limits<double>::infinity(), std::numeric_limits<double>::quiet_NaN()}) {
    CHECK_THAT(refused(weight), Contains("above 0 and at most 1e+30; got "));
  }
  if (mode != kSync)
    CHECK_THAT(refused(2), Contains("weight: got 2, but with consistency.mode \"bounded\" or"));
  CHECK(f.Weights() == All(0));
}

TEST_CASE("A part that another shard refused is dropped here too") {
  ShardFixture f(kSync);
  f.Start();
  const auto a = f.Push(Part(0, 0, 6));
  const auto b = f.Push(Part(0, 1, 8));
  f.Commit(0, {1});
  CHECK(a->reply().outcome() == v1::REFUSED);
  CHECK(b->reply().outcome() == v1::OK);
  CHECK(f.Weights() == All(8));
}

TEST_CASE("A step without parts changes nothing but the version") {
  ShardFixture f(kSync);
  f.config.mutable_optimizer()->set_type(v1::OptimizerConfig::KIND_MOMENTUM);
  f.Start();
  f.Push(Part(0, 0));
  f.Push(Part(0, 1));
  f.Commit(0, {0, 1});
  const auto before = f.Weights();
  const auto a = f.Push(Part(1, 0));
  f.Push(Part(1, 1));
  f.Commit(1, {});
  CHECK(a->reply().outcome() == v1::REFUSED);
  CHECK(f.Weights() == before);
  CHECK(f.Pull(0, 2)->reply().header.version().count() == 2);
  // The slots are unchanged, too: 1 from the first step, then 0.9 * 1 + 1.
  f.Push(Part(2, 0));
  f.Push(Part(2, 1));
  f.Commit(2, {0, 1});
  CHECK(f.Weights()[3] == before[3] + (0.9f * 1 + 1));
}

TEST_CASE("The last step may be short, and so may be its last part") {
  ShardFixture f(kSync);
  f.install.set_total_batches(3);
  f.install.set_total_examples(19);  // 8, 8, 3
  f.install.set_total_steps(2);
  f.Start();
  f.Push(Part(0, 0));
  f.Push(Part(0, 1));
  f.Commit(0, {0, 1});
  Staged(f);
  TestPush whole = Part(1, 0);
  whole.examples = 8;
  const auto wrong = f.Push(whole);
  CHECK(wrong->status().code() == absl::StatusCode::kInvalidArgument);
  CHECK_THAT(std::string(wrong->status().message()), Contains("3 examples") && Contains("of 8"));
  CHECK(f.Push(Part(1, 1))->status().code() == absl::StatusCode::kInvalidArgument);
  const auto last = f.Push(Part(1, 0));
  REQUIRE(Staged(f).size() == 1);
  f.Commit(1, {0});
  CHECK(last->reply().outcome() == v1::OK);
  CHECK(f.Push(Part(2, 0))->status().code() == absl::StatusCode::kInvalidArgument);
}

TEST_CASE("The mean of a step is weighted by the examples of its parts") {
  ShardFixture f(kSync);
  f.install.set_total_batches(2);
  f.install.set_total_examples(10);  // 8 and 2
  f.Start();
  f.Push(Part(0, 0, 1));
  f.Push(Part(0, 1, 6));
  f.Commit(0, {0, 1});
  CHECK(f.Weights() == All(2));  // (8 * 1 + 2 * 6) / 10
}

TEST_CASE("A sync step's bits do not depend on the order of arrival") {
  std::vector<std::vector<float>> results;
  const std::vector<std::vector<uint32_t>> orders = {{0, 1, 2, 3}, {3, 2, 1, 0}, {2, 0, 3, 1}};
  for (const auto& order : orders) {
    ShardFixture f(kSync);
    f.install.set_parts(4);
    f.Start();
    for (uint64_t step = 0; step < 3; ++step) {
      for (uint32_t part : order) f.Push(Part(step, part, 0.1f + 0.37f * static_cast<float>(part)));
      f.Commit(step, {0, 1, 2, 3});
    }
    results.push_back(f.Weights());
  }
  CHECK(results[0] == results[1]);
  CHECK(results[0] == results[2]);
}

TEST_CASE("A part of another batch, version or incarnation of the shard is not staged") {
  ShardFixture f(kSync);
  f.Start();
  TestPush push = Part(0, 0);
  push.batch = 1;
  CHECK(f.Push(push)->status().code() == absl::StatusCode::kInvalidArgument);
  push = Part(0, 0);
  push.base_incarnation = 5;
  CHECK(f.Push(push)->status().code() == absl::StatusCode::kInvalidArgument);
  push = Part(0, 0);
  push.base = 1;
  CHECK(f.Push(push)->status().code() == absl::StatusCode::kInvalidArgument);
  f.Push(Part(0, 1));
  CHECK(Staged(f).empty());
  f.Push(Part(0, 0));
  CHECK(Staged(f).size() == 1);
}

TEST_CASE("A commit that comes again changes nothing") {
  ShardFixture f(kSync);
  f.Start();
  f.Push(Part(0, 0));
  f.Push(Part(0, 1));
  f.Commit(0, {0, 1});
  f.Commit(0, {0, 1});
  CHECK(f.Newest()->count == 1);
  CHECK(f.Weights() == All(1));
  CHECK(f.Reports(v1::ShardReport::kFailed).empty());
}

TEST_CASE("A commit that the shard cannot obey fails it, and the coordinator hears why") {
  struct {
    uint64_t step;
    std::vector<uint32_t> parts;
    const char* why;
  } const commits[] = {
      {0, {0}, "not all of its parts have come"},
      {1, {0, 1}, "the open step is 0"},
      {0, {0, 2}, "part 2 is not staged here"},
      {0, {0, 1}, "part 1 is refused here"},
  };
  for (size_t i = 0; i < std::size(commits); ++i) {
    CAPTURE(i);
    ShardFixture f(kSync);
    f.Start();
    const auto push = f.Push(Part(0, 0));
    if (i >= 2) {
      TestPush second = Part(0, 1);
      if (i == 3) second.bad_element = 7;
      f.Push(second);
    }
    const auto pull = f.Pull(0, 1);
    f.Commit(commits[i].step, commits[i].parts);
    const auto failed = f.Reports(v1::ShardReport::kFailed);
    REQUIRE(failed.size() == 1);
    const std::string& error = failed[0].failed().error();
    CHECK_THAT(error,
               Contains("cannot commit step " + std::to_string(commits[i].step) + " as ps:0 decided: ") &&
                   Contains(commits[i].why));
    CHECK(failed[0].failed().kind() == v1::FAILURE_INTERNAL);
    // No call waits any more, and nothing has changed.
    CHECK(push->reply().outcome() == v1::JOB_OVER);
    CHECK(push->reply().reason() == error);
    CHECK(push->reply().failure_kind() == v1::FAILURE_INTERNAL);
    CHECK(pull->reply().header.outcome() == v1::JOB_OVER);
    CHECK(f.Push(Part(0, 1))->reply().outcome() == v1::JOB_OVER);
    CHECK(f.shard->counters().version == 0);
    // The next coordinator hears of the end, too.
    v1::ControlMessage hello;
    hello.mutable_hello();
    f.Control(hello);
    CHECK(f.Reports(v1::ShardReport::kFailed).size() == 1);
  }
}

// Readers hold versions until a commit has to wait for memory. Returns the step of this commit.
uint64_t CommitUntilItWaits(ShardFixture& f, std::vector<PullAnswerPtr>* held) {
  uint64_t step = 0;
  do {
    held->push_back(f.Pull(0, step));
    f.Push({0, step, 0});
    f.Push({1, step, 1});
    f.Commit(step, {0, 1});
    ++step;
  } while (f.Stats().version().count() == step && step < 10);
  REQUIRE(f.Stats().version().count() == step - 1);
  f.Reports(v1::ShardReport::kPinned);
  return step - 1;
}

TEST_CASE("A pin that comes after a commit is of its step, though that waits for memory") {
  ShardFixture f(kSync);
  f.Start();
  std::vector<PullAnswerPtr> held;
  const uint64_t step = CommitUntilItWaits(f, &held);
  f.Pin(5, 30);
  CHECK(f.Reports(v1::ShardReport::kPinned).empty());
  SECTION("a repeat of the commit changes nothing of that") { f.Commit(step, {0, 1}); }
  SECTION("without a repeat") {}
  held.clear();
  f.shard->Tick();
  const auto pinned = f.Reports(v1::ShardReport::kPinned);
  REQUIRE(pinned.size() == 1);
  CHECK(pinned[0].pinned().version().count() == step + 1);
}

TEST_CASE("A pin that is released while its step waits for memory is not made") {
  ShardFixture f(kSync);
  f.Start();
  std::vector<PullAnswerPtr> held;
  CommitUntilItWaits(f, &held);
  f.Pin(5, 30);
  f.Pin(6, 30);
  v1::ControlMessage unpin;
  unpin.mutable_unpin()->set_pin(5);
  f.Control(unpin);
  held.clear();
  f.shard->Tick();
  const auto pinned = f.Reports(v1::ShardReport::kPinned);
  REQUIRE(pinned.size() == 1);
  CHECK(pinned[0].pinned().pin() == 6);
}

TEST_CASE("A dead worker's part stays the step's, and a living one does what is missing") {
  ShardFixture f(kSync);
  f.Start();
  const auto staged = f.Push(Part(0, 1, 3));  // by worker 1
  f.Members(2, {{0}});
  CHECK(f.Push(Part(1, 1))->reply().outcome() == v1::FENCED);
  CHECK_FALSE(staged->there());
  TestPush again = Part(0, 1, 100);
  again.worker = 0;
  const auto repeat = f.Push(again);
  f.Push(Part(0, 0, 1));
  REQUIRE(Staged(f).size() == 1);
  f.Commit(0, {0, 1});
  CHECK(staged->reply().outcome() == v1::OK);
  CHECK(repeat->reply().outcome() == v1::OK);
  CHECK(f.Weights() == All(2));
}

TEST_CASE("A worker joins sync at the open step") {
  ShardFixture f(kSync);
  f.Start();
  f.Push(Part(0, 0));
  f.Push(Part(0, 1));
  f.Commit(0, {0, 1});
  f.Reports(v1::ShardReport::kMembership);
  TestMember joiner{2};
  joiner.joining = true;
  f.Members(2, {{0}, {1}, joiner});
  CHECK(f.Reports(v1::ShardReport::kMembership)[0].membership().floor() == 1);
  CHECK(f.Pull(2, 1)->reply().header.version().count() == 1);
}

TEST_CASE("A sync pull is of its step: a later one waits, a past one is told which is open") {
  ShardFixture f(kSync);
  f.Start();
  f.Push(Part(0, 0));
  f.Push(Part(0, 1));
  f.Commit(0, {0, 1});
  const auto past = f.Pull(0, 0);
  CHECK(past->reply().header.outcome() == v1::STEP_PAST);
  CHECK(past->reply().header.version().count() == 1);
  CHECK(past->reply().version == nullptr);
  const auto later = f.Pull(0, 2);
  CHECK_FALSE(later->there());
  CHECK(f.Stats().waits(0).reason() == "worker:0 (at clock 1), worker:1 (at clock 1)");
}

TEST_CASE("A sync push that waits too long says for whom, stays staged, and may be asked for again") {
  ShardFixture f(kSync);
  f.Start();
  const auto staged = f.Push(Part(0, 0, 1));
  f.clock.Advance(absl::Seconds(60));
  f.shard->Tick();
  REQUIRE(staged->there());
  CHECK(staged->status().code() == absl::StatusCode::kDeadlineExceeded);
  CHECK_THAT(std::string(staged->status().message()),
             Contains("part 0") && Contains("worker:1 (at clock 0)"));
  // The repeat has its own wait.
  const auto repeat = f.Push(Part(0, 0, 100));
  f.shard->Tick();
  CHECK_FALSE(repeat->there());
  f.clock.Advance(absl::Seconds(59));
  f.shard->Tick();
  CHECK_FALSE(repeat->there());
  f.Push(Part(0, 1, 3));
  f.Commit(0, {0, 1});
  CHECK(repeat->reply().outcome() == v1::OK);
  CHECK(staged->times == 1);
  CHECK(f.Weights() == All(2));
}

TEST_CASE("The end of the job answers staged parts too") {
  ShardFixture f(kSync);
  f.Start();
  const auto staged = f.Push(Part(0, 0));
  const auto held = f.Push(Part(1, 0));
  f.Shutdown("");
  CHECK(staged->reply().outcome() == v1::JOB_OVER);
  CHECK(held->reply().outcome() == v1::JOB_OVER);
  f.Push(Part(0, 1));
  f.Commit(0, {0, 1});
  CHECK(staged->times == 1);
}

}  // namespace
}  // namespace weir
