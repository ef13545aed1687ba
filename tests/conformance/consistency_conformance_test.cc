// The contract of ConsistencyPolicy in every mode. A fourth mode is one more row.
#include <cstdint>
#include <functional>
#include <memory>
#include <string>
#include <vector>

#include "catch2/catch.hpp"
#include "ps_server/consistency/policy.h"

namespace weir {
namespace {

constexpr uint32_t kParts = 2;
constexpr uint64_t kBatches = 1000;

struct Mode {
  std::string name;
  bool sync;
  std::function<std::unique_ptr<ConsistencyPolicy>()> make;
};

const std::vector<Mode>& Modes() {
  static const auto* modes = new std::vector<Mode>{
      {"sync", true, [] { return MakeSyncPolicy(kParts, kBatches); }},
      {"bounded(0)", false, [] { return MakeBoundedPolicy(0); }},
      {"bounded(3)", false, [] { return MakeBoundedPolicy(3); }},
      {"async", false, [] { return MakeAsyncPolicy(); }},
  };
  return *modes;
}

// Two workers, ranks 0 and 1, which act as workers do: pull at their clock, push, go on.
struct Two {
  const Mode& mode;
  std::unique_ptr<ConsistencyPolicy> policy = mode.make();

  explicit Two(const Mode& m) : mode(m) {
    policy->Admit(0, 0);
    policy->Admit(1, 0);
  }
  PushKey Key(uint32_t worker, uint64_t clock) const { return {worker, clock, mode.sync ? worker : 0}; }
  void Push(uint32_t worker, uint64_t clock) {
    const PushDecision decision = policy->OnPush(Key(worker, clock));
    REQUIRE(decision == (mode.sync ? PushDecision::kStage : PushDecision::kApply));
    policy->Complete(Key(worker, clock));
    if (policy->CompleteStep().has_value()) policy->Commit();
  }
  void Both(uint64_t clock) {
    Push(0, clock);
    Push(1, clock);
  }
};

TEST_CASE("Workers in step never wait, in any mode") {
  const size_t row = GENERATE(range(size_t{0}, Modes().size()));
  CAPTURE(Modes()[row].name);
  Two two(Modes()[row]);
  for (uint64_t clock = 0; clock < 50; ++clock) {
    for (uint32_t worker : {0, 1}) {
      CHECK(two.policy->OnPull(worker, clock) == PullDecision::kReady);
      CHECK(two.policy->WaitingFor(worker, clock).empty());
    }
    two.Both(clock);
  }
}

TEST_CASE("A push is completed once: its repeat is told so, in any mode") {
  const size_t row = GENERATE(range(size_t{0}, Modes().size()));
  CAPTURE(Modes()[row].name);
  Two two(Modes()[row]);
  two.Push(0, 0);
  CHECK(two.policy->OnPush(two.Key(0, 0)) == PushDecision::kRepeat);
  two.Push(1, 0);
  two.Both(1);
  for (uint64_t clock : {0, 1}) {
    for (uint32_t worker : {0, 1}) CHECK(two.policy->OnPush(two.Key(worker, clock)) == PushDecision::kRepeat);
  }
  CHECK(two.policy->JoinClock() == 2);
}

TEST_CASE("The next push but one is held, one far ahead is not legal, in any mode") {
  const size_t row = GENERATE(range(size_t{0}, Modes().size()));
  CAPTURE(Modes()[row].name);
  Two two(Modes()[row]);
  two.Both(0);
  CHECK(two.policy->OnPush(two.Key(0, 2)) == PushDecision::kHold);
  CHECK(two.policy->OnPush(two.Key(0, 2 + kHoldWindow)) == PushDecision::kInvalid);
  CHECK(two.policy->OnPush({0, 1, kParts}) == PushDecision::kInvalid);
}

TEST_CASE("Who waits is told for whom, and whom a wait names can end it, in any mode") {
  const size_t row = GENERATE(range(size_t{0}, Modes().size()));
  CAPTURE(Modes()[row].name);
  Two two(Modes()[row]);
  for (uint64_t clock = 0; clock < 10; ++clock) {
    for (uint32_t worker : {0, 1}) {
      for (uint64_t at = 0; at < 14; ++at) {
        const bool waits = two.policy->OnPull(worker, at) == PullDecision::kWait;
        CHECK(waits == !two.policy->WaitingFor(worker, at).empty());
      }
    }
    two.Both(clock);
  }
}

TEST_CASE("Asking changes nothing, in any mode") {
  const size_t row = GENERATE(range(size_t{0}, Modes().size()));
  CAPTURE(Modes()[row].name);
  Two two(Modes()[row]);
  two.Both(0);
  for (int i = 0; i < 3; ++i) {
    CHECK(two.policy->OnPush(two.Key(1, 1)) == (two.mode.sync ? PushDecision::kStage : PushDecision::kApply));
    CHECK(two.policy->OnPull(7, 0) ==
          (two.mode.sync ? PullDecision::kPast : PullDecision::kReady));  // a stranger leaves no record
    CHECK(two.policy->OnPush(two.Key(1, 2)) == PushDecision::kHold);
    CHECK(two.policy->Clocks().size() == 2);
    CHECK(two.policy->JoinClock() == 1);
  }
}

TEST_CASE("Removing a worker ends every wait for it, in any mode") {
  const size_t row = GENERATE(range(size_t{0}, Modes().size()));
  CAPTURE(Modes()[row].name);
  Two two(Modes()[row]);
  two.Push(0, 0);
  two.policy->Remove(1);
  for (uint64_t clock = 1; clock < 12; ++clock) {
    for (uint32_t waited_for : two.policy->WaitingFor(0, clock)) CHECK(waited_for == 0);
  }
  REQUIRE(two.policy->Clocks().size() == 1);
  CHECK(two.policy->Clocks()[0].worker == 0);
}

TEST_CASE(
    "A worker that joins waits for nobody at its first clock, and nobody is made to wait, in any mode") {
  const size_t row = GENERATE(range(size_t{0}, Modes().size()));
  CAPTURE(Modes()[row].name);
  Two two(Modes()[row]);
  for (uint64_t clock = 0; clock < 5; ++clock) two.Both(clock);
  const uint64_t start = two.policy->JoinClock();
  CHECK(start == 5);
  two.policy->Admit(2, start);
  for (uint32_t worker : {0, 1, 2}) CHECK(two.policy->OnPull(worker, start) == PullDecision::kReady);
  const std::vector<WorkerClockValue> clocks = two.policy->Clocks();
  REQUIRE(clocks.size() == 3);
  for (uint32_t worker : {0, 1, 2}) {
    CHECK(clocks[worker].worker == worker);
    CHECK(clocks[worker].clock == 5);
  }
}

}  // namespace
}  // namespace weir
