#include <cstdint>
#include <limits>
#include <memory>
#include <vector>

#include "catch2/catch.hpp"
#include "ps_server/consistency/policy.h"

namespace weir {
namespace {

using Workers = std::vector<uint32_t>;

void Apply(ConsistencyPolicy& policy, uint32_t worker, uint64_t clock) {
  REQUIRE(policy.OnPush({worker, clock, 0}) == PushDecision::kApply);
  policy.Complete({worker, clock, 0});
}

void ApplyUpTo(ConsistencyPolicy& policy, uint32_t worker, uint64_t from, uint64_t to) {
  for (uint64_t clock = from; clock < to; ++clock) Apply(policy, worker, clock);
}

TEST_CASE("Bounded answers a pull up to s clocks ahead of the slowest, and not one more") {
  const uint64_t s = GENERATE(0, 1, 3);
  CAPTURE(s);
  auto policy = MakeBoundedPolicy(s);
  policy->Admit(0, 0);
  policy->Admit(1, 0);
  policy->Admit(2, 0);
  ApplyUpTo(*policy, 0, 0, 10);
  ApplyUpTo(*policy, 1, 0, 2);
  ApplyUpTo(*policy, 2, 0, 5);
  CHECK(policy->OnPull(0, 2 + s) == PullDecision::kReady);
  CHECK(policy->WaitingFor(0, 2 + s).empty());
  CHECK(policy->OnPull(0, 2 + s + 1) == PullDecision::kWait);
  CHECK(policy->WaitingFor(0, 2 + s + 1) == Workers{1});
  CHECK(policy->WaitingFor(0, 5 + s + 1) == Workers{1, 2});
  // One more push of the slowest worker moves the limit by one.
  Apply(*policy, 1, 2);
  CHECK(policy->OnPull(0, 2 + s + 1) == PullDecision::kReady);
  CHECK(policy->OnPull(0, 2 + s + 2) == PullDecision::kWait);
}

TEST_CASE("Bounded never holds a push back for the bound: a lead of s + 1 and more is normal") {
  auto policy = MakeBoundedPolicy(0);
  policy->Admit(0, 0);
  policy->Admit(1, 0);
  ApplyUpTo(*policy, 0, 0, 20);
  CHECK(policy->OnPull(0, 20) == PullDecision::kWait);
}

TEST_CASE("A pull waits for the worker's own pushes, whatever the bound") {
  auto policy = GENERATE(0, 1) == 0 ? MakeBoundedPolicy(5) : MakeAsyncPolicy();
  policy->Admit(0, 0);
  CHECK(policy->OnPull(0, 0) == PullDecision::kReady);
  CHECK(policy->OnPull(0, 1) == PullDecision::kWait);
  CHECK(policy->WaitingFor(0, 1) == Workers{0});
  Apply(*policy, 0, 0);
  CHECK(policy->OnPull(0, 1) == PullDecision::kReady);
}

TEST_CASE("A bound near the largest number does not wrap") {
  auto policy = MakeBoundedPolicy(1'000'000);
  policy->Admit(0, 0);
  policy->Admit(1, 0);
  ApplyUpTo(*policy, 0, 0, 3);
  CHECK(policy->OnPull(0, 3) == PullDecision::kReady);
  CHECK(policy->OnPull(1, 0) == PullDecision::kReady);
  CHECK(policy->OnPull(0, std::numeric_limits<uint64_t>::max()) == PullDecision::kWait);
}

TEST_CASE("Async waits for nobody else") {
  auto policy = MakeAsyncPolicy();
  policy->Admit(0, 0);
  policy->Admit(1, 0);
  ApplyUpTo(*policy, 0, 0, 1000);
  CHECK(policy->OnPull(0, 1000) == PullDecision::kReady);
  CHECK(policy->WaitingFor(0, 1000).empty());
}

TEST_CASE("Pushes of a worker are taken in the order of its clocks") {
  auto policy = GENERATE(0, 1) == 0 ? MakeBoundedPolicy(2) : MakeAsyncPolicy();
  policy->Admit(3, 0);
  ApplyUpTo(*policy, 3, 0, 5);
  CHECK(policy->OnPush({3, 0, 0}) == PushDecision::kRepeat);
  CHECK(policy->OnPush({3, 4, 0}) == PushDecision::kRepeat);
  CHECK(policy->OnPush({3, 5, 0}) == PushDecision::kApply);
  CHECK(policy->OnPush({3, 6, 0}) == PushDecision::kHold);
  CHECK(policy->OnPush({3, 5 + kHoldWindow, 0}) == PushDecision::kHold);
  CHECK(policy->OnPush({3, 5 + kHoldWindow + 1, 0}) == PushDecision::kInvalid);
  CHECK(policy->OnPush({3, std::numeric_limits<uint64_t>::max(), 0}) == PushDecision::kInvalid);
  CHECK(policy->OnPush({3, 5, 1}) == PushDecision::kInvalid);  // parts are for sync
}

TEST_CASE("Removing the slowest releases who waits for it, idle ones too") {
  auto policy = MakeBoundedPolicy(1);
  for (uint32_t worker : {0, 1, 2}) policy->Admit(worker, 0);
  ApplyUpTo(*policy, 0, 0, 4);
  ApplyUpTo(*policy, 2, 0, 3);
  CHECK(policy->WaitingFor(0, 4) == Workers{1});
  policy->Remove(1);
  CHECK(policy->OnPull(0, 4) == PullDecision::kReady);
  REQUIRE(policy->Clocks().size() == 2);
  // An idle worker still reads its own weights, and waits for the workers that count.
  CHECK(policy->OnPull(1, 0) == PullDecision::kReady);
  CHECK(policy->WaitingFor(1, 5) == Workers{1, 2});
  // The worker is back, at the join clock; its record is neither lost nor lowered.
  policy->Admit(1, policy->JoinClock());
  CHECK(policy->Clocks()[1].clock == 3);
  policy->Remove(0);
  policy->Admit(0, 1);
  CHECK(policy->Clocks()[0].clock == 4);
}

TEST_CASE("A worker joins at the slowest live clock, or at the highest on record if nobody lives") {
  auto policy = GENERATE(0, 1) == 0 ? MakeBoundedPolicy(2) : MakeAsyncPolicy();
  CHECK(policy->JoinClock() == 0);
  policy->Admit(0, 0);
  policy->Admit(1, 0);
  ApplyUpTo(*policy, 0, 0, 7);
  ApplyUpTo(*policy, 1, 0, 4);
  CHECK(policy->JoinClock() == 4);
  policy->Remove(1);
  CHECK(policy->JoinClock() == 7);
  policy->Admit(1, 0);
  policy->Remove(0);
  CHECK(policy->JoinClock() == 4);
  policy->Remove(1);
  CHECK(policy->JoinClock() == 7);
}

TEST_CASE("Forget begins a new incarnation: the clock starts anew") {
  auto policy = GENERATE(0, 1) == 0 ? MakeBoundedPolicy(2) : MakeAsyncPolicy();
  policy->Admit(0, 0);
  policy->Admit(1, 0);
  ApplyUpTo(*policy, 0, 0, 9);
  ApplyUpTo(*policy, 1, 0, 3);
  policy->Forget(0);
  CHECK(policy->Clocks().size() == 1);
  policy->Admit(0, policy->JoinClock());
  CHECK(policy->OnPush({0, 2, 0}) == PushDecision::kRepeat);
  CHECK(policy->OnPush({0, 3, 0}) == PushDecision::kApply);
}

TEST_CASE("Admitting ahead completes the clocks below") {
  auto policy = MakeBoundedPolicy(0);
  policy->Admit(0, 5);
  policy->Admit(1, 6);
  CHECK(policy->OnPull(0, 5) == PullDecision::kReady);
  CHECK(policy->WaitingFor(1, 6) == Workers{0});
  CHECK(policy->OnPush({0, 4, 0}) == PushDecision::kRepeat);
  // The second round of a join: the clock goes up, never down.
  policy->Admit(0, 6);
  CHECK(policy->OnPull(1, 6) == PullDecision::kReady);
  policy->Admit(0, 2);
  CHECK(policy->OnPush({0, 6, 0}) == PushDecision::kApply);
}

}  // namespace
}  // namespace weir
