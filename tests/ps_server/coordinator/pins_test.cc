// Pins: which callers may pin versions, how many, and for how long.
#include <cmath>
#include <memory>
#include <string>
#include <vector>

#include "catch2/catch.hpp"
#include "tests/ps_server/coordinator/coordinator_fixture.h"

namespace weir {
namespace {

using Catch::Contains;
constexpr auto kSync = v1::ConsistencyConfig::MODE_SYNC;
constexpr auto kAsync = v1::ConsistencyConfig::MODE_ASYNC;

std::vector<v1::PinVersion> PinsSent(const FakeShard& shard) {
  std::vector<v1::PinVersion> out;
  for (const auto& message : shard.Sent(v1::ControlMessage::kPin)) out.push_back(message.pin());
  return out;
}

std::vector<uint64_t> UnpinsSent(const FakeShard& shard) {
  std::vector<uint64_t> out;
  for (const auto& message : shard.Sent(v1::ControlMessage::kUnpin)) out.push_back(message.unpin().pin());
  return out;
}

TEST_CASE("A pin is answered when every shard has it, with all versions by shard") {
  CoordinatorFixture f(kSync, 1, 3);
  f.StartJob();
  for (auto& shard : f.shards) shard->answers_pins = false;
  const auto pin = f.Pin(45);
  const auto other = f.Pin(1e9);
  REQUIRE(PinsSent(*f.shards[0]).size() == 2);
  const v1::PinVersion first = PinsSent(*f.shards[0])[0], second = PinsSent(*f.shards[0])[1];
  CHECK(first.lease_seconds() == 45);
  CHECK(second.lease_seconds() == 60);  // the limit of a lease
  CHECK(first.pin() != second.pin());
  f.shards[2]->Pinned(first.pin(), 7);
  f.shards[0]->Pinned(first.pin(), 7);
  f.shards[0]->Pinned(first.pin(), 7);
  CHECK_FALSE(pin->there());
  f.shards[1]->Pinned(first.pin(), 7);
  CHECK(pin->reply().pin() == first.pin());
  REQUIRE(pin->reply().versions_size() == 3);
  for (int i = 0; i < 3; ++i) {
    CHECK(pin->reply().versions(i).count() == 7);
    CHECK(pin->reply().versions(i).incarnation() == f.shards[i]->incarnation);
  }
  f.shards[1]->Pinned(first.pin(), 7);
  CHECK(pin->times == 1);
  CHECK_FALSE(other->there());
  f.Unpin(f.members[0], first.pin());
  CHECK(UnpinsSent(*f.shards[2]) == std::vector<uint64_t>{first.pin()});
}

TEST_CASE("A pin lease that is no number is short") {
  CoordinatorFixture f(kSync, 1, 1);
  f.StartJob();
  f.Pin(std::nan(""));
  CHECK(PinsSent(*f.shards[0])[0].lease_seconds() == 1);
}

TEST_CASE("A pin that a shard does not confirm ends with a lease, everywhere") {
  CoordinatorFixture f(kSync);
  f.shards[1]->answers_pins = false;
  f.StartJob();
  const auto pin = f.Pin();
  f.Run(absl::Seconds(9), f.members);
  CHECK_FALSE(pin->there());
  f.Run(absl::Seconds(2), f.members);
  CHECK(pin->status().code() == absl::StatusCode::kDeadlineExceeded);
  CHECK(UnpinsSent(*f.shards[0]).size() == 1);
}

TEST_CASE("In sync pins and commits come to every shard in the same order, so a pin is of one step") {
  CoordinatorFixture f(kSync);
  f.StartJob();
  f.shards[0]->Staged(0);
  f.Pin();
  f.shards[1]->Staged(0);
  f.Pin();
  for (const auto& shard : f.shards) {
    std::vector<int> order;
    for (const auto& message : shard->sent) {
      if (message.has_pin() || message.has_commit()) order.push_back(message.message_case());
    }
    CHECK(order ==
          std::vector<int>{v1::ControlMessage::kPin, v1::ControlMessage::kCommit, v1::ControlMessage::kPin});
  }
}

TEST_CASE("Only who is in the job may pin a version, and let go what it has pinned") {
  CoordinatorFixture f(kAsync);
  f.Start();
  CHECK(f.PinOf({})->status().code() == absl::StatusCode::kUnavailable);
  f.Join(0);
  const v1::JoinReply worker = f.Join(1)->reply();
  const v1::JoinReply reader = f.JoinReader()->reply();
  v1::JoinReply stranger = reader;
  stranger.set_incarnation(reader.incarnation() + 1);
  for (const v1::JoinReply& caller : {stranger, v1::JoinReply()}) {
    const auto refused = f.PinOf(caller);
    CHECK(refused->status().code() == absl::StatusCode::kAborted);
    CHECK_THAT(std::string(refused->status().message()),
               Contains(" is a different incarnation from the caller"));
  }
  CHECK(PinsSent(*f.shards[0]).empty());
  const uint64_t pin = f.PinOf(reader)->reply().pin();
  f.Unpin(stranger, pin);
  f.Unpin(worker, pin);
  CHECK(UnpinsSent(*f.shards[0]).empty());
  f.Unpin(reader, pin);
  f.Unpin(reader, pin);
  CHECK(UnpinsSent(*f.shards[0]) == std::vector<uint64_t>{pin});
}

TEST_CASE("At most two versions are pinned; who waits for the next one shares it") {
  CoordinatorFixture f(kAsync);
  f.StartJob();
  std::vector<v1::JoinReply> readers;
  for (uint64_t i = 0; i < 5; ++i) readers.push_back(f.JoinReader(9000 + i)->reply());
  const uint64_t first = f.PinOf(readers[0], 600)->reply().pin();
  const uint64_t second = f.PinOf(readers[1], 600)->reply().pin();
  std::vector<AnswerPtr<v1::PinReply>> waiting;
  for (uint64_t i = 2; i < 5; ++i) waiting.push_back(f.PinOf(readers[i]));
  CHECK(PinsSent(*f.shards[0]).size() == 2);
  for (const auto& wish : waiting) CHECK_FALSE(wish->there());
  f.Unpin(readers[1], second);
  const uint64_t third = waiting[0]->reply().pin();
  for (const auto& wish : waiting) CHECK(wish->reply().pin() == third);
  CHECK((third != first && third != second));
  // The pin stays until the last of its readers releases it.
  f.Unpin(readers[2], third);
  f.Unpin(readers[3], third);
  CHECK(UnpinsSent(*f.shards[0]) == std::vector<uint64_t>{second});
  f.Unpin(readers[4], third);
  CHECK(UnpinsSent(*f.shards[0]) == std::vector<uint64_t>{second, third});
}

TEST_CASE("Readers that never let go keep nobody waiting for longer than a pin's lease") {
  CoordinatorFixture f(kAsync);
  f.StartJob();
  std::vector<v1::JoinReply> all = f.members;
  for (uint64_t i = 0; i < 3; ++i) all.push_back(f.JoinReader(9000 + i)->reply());
  const v1::JoinReply &greedy = all[2], &other = all[3], &honest = all[4];
  f.PinOf(greedy, 600);
  f.PinOf(other, 600);
  for (int i = 0; i < 10; ++i) f.PinOf(greedy, 600);
  auto pin = f.PinOf(honest, 5);
  int refused = 0;
  for (int seconds = 0; !pin->status().ok() && seconds < 70; ++seconds) {
    if (pin->there()) {
      CHECK(pin->status().code() == absl::StatusCode::kUnavailable);
      CHECK_THAT(std::string(pin->status().message()), Contains("evaluator:0"));
      ++refused;
      pin = f.PinOf(honest, 5);
    }
    f.PinOf(greedy, 600);
    f.Run(absl::Seconds(1), all);
  }
  CHECK(pin->reply().versions_size() == 2);
  CHECK(refused >= 3);  // each answer gave the reason
}

TEST_CASE("A pin goes with its holder, and a wish for one too") {
  CoordinatorFixture f(kAsync);
  f.StartJob();
  const v1::JoinReply one = f.JoinReader(9000)->reply(), two = f.JoinReader(9001)->reply();
  const uint64_t first = f.PinOf(one, 60)->reply().pin(), second = f.PinOf(two, 60)->reply().pin();
  const auto wish = f.Pin(60);
  SECTION("that leaves") {
    f.Leave(one);
    CHECK(UnpinsSent(*f.shards[1]) == std::vector<uint64_t>{first});
    CHECK(wish->there());
  }
  SECTION("whose lease ends") {
    f.Run(absl::Seconds(11), {f.members[0], f.members[1], two});
    CHECK(UnpinsSent(*f.shards[1]) == std::vector<uint64_t>{first});
  }
  SECTION("before it was granted") {
    f.Leave(f.members[0], false, "out of memory");
    CHECK(wish->status().code() == absl::StatusCode::kAborted);
    f.Unpin(one, first);
    f.Unpin(two, second);
    CHECK(PinsSent(*f.shards[0]).size() == 2);
  }
  SECTION("when the job fails") {
    f.coordinator->Fail("no more");
    CHECK(wish->status().message() == "no more");
  }
  CHECK(wish->times <= 1);
}

}  // namespace
}  // namespace weir
