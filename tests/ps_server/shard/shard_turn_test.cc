// Large pushes of different workers: which arrives when.
#include <string>
#include <utility>
#include <vector>

#include "catch2/catch.hpp"
#include "common/wire_codec.h"
#include "tests/ps_server/shard/shard_fixture.h"

namespace weir {
namespace {

// More than a message holds: 2 MiB, which is to move every millisecond or so.
constexpr int64_t kUnits = 8, kElements = kUnits * kChunkUnit;
constexpr auto kPatience = absl::Microseconds(1100);

using BeginPtr = AnswerPtr<PushBegin>;

struct Large : ShardFixture {
  Large() : ShardFixture(v1::ConsistencyConfig::MODE_ASYNC) {
    model.tensors[0].shape = {kElements};
    Create();
    REQUIRE(Install() == "");
    Members(1, {{0}, {1}, {2}});
  }

  BeginPtr Begin(const TestPush& push) {
    auto begin = std::make_shared<Answer<PushBegin>>();
    shard->Begin(kSession, Header(push), Keep(begin));
    return begin;
  }
  std::unique_ptr<PushArrival> Arrival(const BeginPtr& begin) {
    REQUIRE(begin->there());
    REQUIRE(begin->value->ok());
    return absl::get<std::unique_ptr<PushArrival>>(**std::move(begin->value));
  }
  // Units [begin, end) of a gradient of ones.
  void Take(PushArrival& arrival, uint64_t begin, uint64_t end) {
    const std::vector<float> ones(kChunkUnit, 1.0f);
    const absl::string_view bytes(reinterpret_cast<const char*>(ones.data()), kChunkUnit * sizeof(float));
    for (uint64_t unit = begin; unit < end; ++unit) {
      REQUIRE(arrival.Take(unit * kChunkUnit, absl::MakeConstSpan(&bytes, 1), bytes.size()).ok());
    }
  }
  AnswerPtr<PushAnswer> Finish(std::unique_ptr<PushArrival> arrival) {
    auto answer = std::make_shared<Answer<PushAnswer>>();
    shard->Push(kSession, std::move(arrival), Keep(answer));
    return answer;
  }
};

TEST_CASE("A large push begins when the one before it is in, in their order, and is streamed like it") {
  Large f;
  auto first = f.Arrival(f.Begin({0}));
  CHECK(first->streamed());
  f.Take(*first, 0, 1);
  const BeginPtr second = f.Begin({1}), third = f.Begin({2});
  CHECK_FALSE(second->there());
  CHECK_FALSE(third->there());
  f.Take(*first, 1, kUnits);
  CHECK(f.Finish(std::move(first))->reply().reply.outcome() == v1::OK);
  auto arrival = f.Arrival(second);
  CHECK(arrival->streamed());
  CHECK_FALSE(third->there());
  f.Take(*arrival, 0, kUnits);
  CHECK(f.Finish(std::move(arrival))->reply().reply.outcome() == v1::OK);
  CHECK(f.Arrival(third)->streamed());
  CHECK((f.Weights() == std::vector<float>(kElements, 2.0f)));
}

TEST_CASE("It waits for one that moves, and does not for one that stands still") {
  Large f;
  auto slow = f.Arrival(f.Begin({0}));
  const BeginPtr second = f.Begin({1});
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
  auto arrival = f.Arrival(second);
  CHECK_FALSE(arrival->streamed());
  // Nor does the next one.
  CHECK(f.Begin({2})->there());

  // It overtakes the slow one, which is then sent again and has to wait for nobody who overtakes it.
  f.Take(*arrival, 0, kUnits);
  CHECK(f.Finish(std::move(arrival))->reply().reply.outcome() == v1::OK);
  CHECK(slow->overtaken());
  slow = nullptr;
  auto again = f.Arrival(f.Begin({0}));
  CHECK_FALSE(again->streamed());
}

TEST_CASE("A stream that is given up lets the next push begin at the next tick") {
  Large f;
  auto first = f.Arrival(f.Begin({0}));
  f.Take(*first, 0, 1);
  const BeginPtr second = f.Begin({1});
  REQUIRE_FALSE(second->there());
  first = nullptr;
  f.shard->Tick();
  CHECK(f.Arrival(second)->streamed());
}

}  // namespace
}  // namespace weir
