// The order in which large pushes of different workers arrive.
#include <limits>
#include <memory>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include "catch2/catch.hpp"
#include "common/codec/wire_codec.h"
#include "tests/ps_server/shard/push_whole.h"
#include "tests/ps_server/shard/shard_fixture.h"

namespace weir {
namespace {

// A push of 2 MiB is larger than a message, and has to make progress about every millisecond.
constexpr int64_t kUnits = 8, kElements = kUnits * kChunkUnit;
constexpr auto kPatience = absl::Microseconds(1100);

const std::vector<float> kOnes(kElements, 1.0f);

struct Large : ShardFixture {
  Large() : ShardFixture(v1::ConsistencyConfig::MODE_ASYNC) {
    model.tensors[0].shape = {kElements};
    Create();
    REQUIRE(Install() == "");
    Members(1, {{0}, {1}, {2}});
  }

  void Take(PushArrival& arrival, uint64_t begin, uint64_t end) {
    for (uint64_t unit = begin; unit < end; ++unit) REQUIRE(TakeUnit(arrival, kOnes, unit).ok());
  }
};

TEST_CASE("A large push begins when the one before it is in, in their order, and is streamed like it") {
  Large f;
  auto first = f.Begin({0});
  CHECK(first->streamed());
  f.Take(*first, 0, 1);
  const auto second = f.TryBegin(f.Header({1})), third = f.TryBegin(f.Header({2}));
  CHECK_FALSE(second->there());
  CHECK_FALSE(third->there());
  f.Take(*first, 1, kUnits);
  CHECK(f.Finish(std::move(first))->reply().reply.outcome() == v1::OK);
  auto arrival = f.ArrivalOf(second);
  CHECK(arrival->streamed());
  CHECK_FALSE(third->there());
  f.Take(*arrival, 0, kUnits);
  CHECK(f.Finish(std::move(arrival))->reply().reply.outcome() == v1::OK);
  CHECK(f.ArrivalOf(third)->streamed());
  CHECK((f.Weights() == std::vector<float>(kElements, 2.0f)));
}

TEST_CASE("A push that is small in its own type does not wait") {
  Large f;
  auto first = f.Begin({0});
  f.Take(*first, 0, 1);
  v1::PushRequest half = f.Header({1});
  half.set_dtype(v1::BF16);
  static_assert(kElements * sizeof(uint16_t) <= kMaxChunkBytes);
  CHECK(f.TryBegin(half)->there());
  CHECK_FALSE(f.TryBegin(f.Header({2}))->there());
}

TEST_CASE("It waits for one that moves, and does not for one that stands still") {
  Large f;
  auto slow = f.Begin({0});
  const auto second = f.TryBegin(f.Header({1}));
  REQUIRE_FALSE(second->there());
  REQUIRE(f.nudges.size() == 1);
  CHECK(f.nudges.back() <= kPatience);
  for (uint64_t unit = 0; unit < 3; ++unit) {
    f.Take(*slow, unit, unit + 1);
    f.clock.Advance(kPatience);
    f.shard->Tick();
    CHECK_FALSE(second->there());
    CHECK(f.nudges.size() == 2 + unit);
  }
  f.clock.Advance(kPatience);
  f.shard->Tick();
  CHECK(f.nudges.size() == 4);
  auto arrival = f.ArrivalOf(second);
  CHECK_FALSE(arrival->streamed());
  // The next push does not stream, either.
  CHECK(f.TryBegin(f.Header({2}))->there());

  // The second push overtakes the slow one, which is then sent again and does not wait for pushes that
  // overtake it.
  f.Take(*arrival, 0, kUnits);
  CHECK(f.Finish(std::move(arrival))->reply().reply.outcome() == v1::OK);
  CHECK(slow->overtaken());
  slow = nullptr;
  auto again = f.Begin({0});
  CHECK_FALSE(again->streamed());
}

TEST_CASE("A stream that is given up lets the next push begin at the next tick") {
  Large f;
  auto first = f.Begin({0});
  f.Take(*first, 0, 1);
  const auto second = f.TryBegin(f.Header({1}));
  REQUIRE_FALSE(second->there());
  first = nullptr;
  f.shard->Tick();
  CHECK(f.ArrivalOf(second)->streamed());
}

TEST_CASE("A shard whose updates take long makes them on a thread of its own, not on its callers'") {
  ShardFixture f(v1::ConsistencyConfig::MODE_ASYNC);
  const bool large = GENERATE(false, true);
  f.model.tensors[0].shape = {(1 << 20) + (large ? 1 : 0)};
  f.Create();
  REQUIRE(f.Install() == "");
  f.Members(1, {{0}, {1}});
  v1::PullRequest pull;
  *pull.mutable_caller() = f.CallerOf(0);
  std::thread::id answered;
  bool ok = false;
  f.shard->Pull(ShardFixture::kSession, pull, [&](const absl::StatusOr<PullAnswer>& answer) {
    answered = std::this_thread::get_id();
    ok = answer.ok() && answer->header.outcome() == v1::OK;
  });
  f.shard->Quiesce();
  CHECK(ok);
  CHECK((answered != std::this_thread::get_id()) == large);
}

// A push whose gradient comes with its header.
AnswerPtr<PushBegin> Whole(ShardFixture& f, const v1::PushRequest& header, std::vector<float> gradient) {
  auto answer = std::make_shared<Answer<PushBegin>>();
  f.shard->Begin(
      ShardFixture::kSession, header, Keep(answer),
      [gradient = std::move(gradient)](PushArrival& arrival) { return TakeAll(arrival, gradient); });
  return answer;
}
const v1::PushReply& ReplyTo(const AnswerPtr<PushBegin>& push) {
  REQUIRE(absl::holds_alternative<PushAnswer>(push->reply()));
  return absl::get<PushAnswer>(push->reply()).reply;
}

TEST_CASE("A whole push is taken, decided on and answered in the turn in which it begins") {
  ShardFixture f(v1::ConsistencyConfig::MODE_ASYNC);
  f.Start();
  const auto second = Whole(f, f.Header({0, 1}), All(2));
  CHECK_FALSE(second->there());
  const auto first = Whole(f, f.Header({0, 0}), All(1));
  CHECK(ReplyTo(first).outcome() == v1::OK);
  CHECK(ReplyTo(first).version().count() == 1);
  const PushAnswer& answer = absl::get<PushAnswer>(first->reply());
  REQUIRE((answer.made.has_value() && answer.version != nullptr));
  CHECK(answer.made->version().count() == 1);
  CHECK(answer.version->weights.get()[39] == 1);
  CHECK(ReplyTo(second).version().count() == 2);
  CHECK(f.Weights() == All(3));
  CHECK(f.shard->counters().bytes_pushed == 2 * 40 * sizeof(float));

  const auto again = Whole(f, f.Header({0, 0}), All(7));
  CHECK(ReplyTo(again).version().count() == 1);
  std::vector<float> bad = All(1);
  bad[12] = std::numeric_limits<float>::quiet_NaN();
  CHECK(ReplyTo(Whole(f, f.Header({0, 2}), bad)).outcome() == v1::REFUSED);
  CHECK(f.Weights() == All(3));
}

TEST_CASE("A whole push that cannot be taken fails and leaves no trace") {
  ShardFixture f(v1::ConsistencyConfig::MODE_ASYNC);
  f.Start();
  CHECK(absl::IsInvalidArgument(Whole(f, f.Header({0, 0}), std::vector<float>(41, 1))->status()));
  CHECK(f.Weights() == All(0));
  CHECK(ReplyTo(Whole(f, f.Header({0, 0}), All(1))).version().count() == 1);
  CHECK(f.Weights() == All(1));
}

TEST_CASE("Whole parts of a step are staged, and answered by its commit") {
  ShardFixture f(v1::ConsistencyConfig::MODE_SYNC);
  f.Start();
  const auto a = Whole(f, f.Header({0, 0, 0}), All(1)), b = Whole(f, f.Header({1, 0, 1}), All(3));
  CHECK_FALSE((a->there() || b->there()));
  f.Commit(0, {0, 1});
  CHECK(ReplyTo(a).outcome() == v1::OK);
  CHECK(ReplyTo(b).version().count() == 1);
  CHECK(f.Weights() == All(2));
}

}  // namespace
}  // namespace weir
