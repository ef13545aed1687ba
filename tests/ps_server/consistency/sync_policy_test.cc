#include <cstdint>
#include <limits>
#include <vector>

#include "catch2/catch.hpp"
#include "ps_server/consistency/policy.h"

namespace weir {
namespace {

using Workers = std::vector<uint32_t>;

std::unique_ptr<ConsistencyPolicy> Make(uint32_t parts, uint64_t total_batches, const Workers& workers) {
  auto policy = MakeSyncPolicy(parts, total_batches);
  for (uint32_t worker : workers) policy->Admit(worker, 0);
  return policy;
}

void Stage(ConsistencyPolicy& policy, const PushKey& push) {
  REQUIRE(policy.OnPush(push) == PushDecision::kStage);
  policy.Complete(push);
}

TEST_CASE("A sync step is complete with all its distinct parts, not with as many messages") {
  auto policy = Make(3, 30, {0, 1, 2});
  Stage(*policy, {0, 0, 0});
  CHECK(policy->OnPush({0, 0, 0}) == PushDecision::kRepeat);
  // Also from another worker: a part belongs to the step, not to its worker.
  CHECK(policy->OnPush({2, 0, 0}) == PushDecision::kRepeat);
  Stage(*policy, {0, 0, 2});
  CHECK_FALSE(policy->CompleteStep().has_value());
  Stage(*policy, {2, 0, 1});
  REQUIRE(policy->CompleteStep().has_value());
  CHECK(*policy->CompleteStep() == 0);
  policy->Commit();
  CHECK_FALSE(policy->CompleteStep().has_value());
}

TEST_CASE("What a push of each step and part is told") {
  // Step 3 is the last and has one part of two.
  auto policy = Make(2, 7, {0, 1});
  for (uint32_t step = 0; step < 2; ++step) {
    Stage(*policy, {0, step, 0});
    Stage(*policy, {1, step, 1});
    policy->Commit();
  }
  Stage(*policy, {0, 2, 0});
  struct Row {
    uint64_t clock;
    uint32_t part;
    PushDecision expected;
  };
  const Row rows[] = {{0, 0, PushDecision::kRepeat},  {1, 1, PushDecision::kRepeat},
                      {1, 2, PushDecision::kInvalid}, {2, 0, PushDecision::kRepeat},
                      {2, 1, PushDecision::kStage},   {2, 2, PushDecision::kInvalid},
                      {3, 0, PushDecision::kHold},    {3, 1, PushDecision::kInvalid},
                      {4, 0, PushDecision::kInvalid}, {99, 0, PushDecision::kInvalid}};
  for (const Row& row : rows) {
    CAPTURE(row.clock, row.part);
    CHECK(policy->OnPush({1, row.clock, row.part}) == row.expected);
  }
  CHECK(policy->OnPush({1, std::numeric_limits<uint64_t>::max(), 0}) == PushDecision::kInvalid);
}

TEST_CASE("A sync push may be one step ahead of the shard, not two") {
  auto policy = Make(1, 100, {0});
  CHECK(policy->OnPush({0, 1, 0}) == PushDecision::kHold);
  CHECK(policy->OnPush({0, 2, 0}) == PushDecision::kInvalid);
  Stage(*policy, {0, 0, 0});
  CHECK(policy->OnPush({0, 1, 0}) == PushDecision::kHold);  // complete is not committed
  policy->Commit();
  CHECK(policy->OnPush({0, 1, 0}) == PushDecision::kStage);
}

TEST_CASE("A short last step is complete with the parts that it has, and nothing comes after it") {
  auto policy = Make(4, 5, {0, 1});
  for (uint32_t part = 0; part < 4; ++part) Stage(*policy, {0, 0, part});
  policy->Commit();
  CHECK(policy->OnPush({0, 1, 1}) == PushDecision::kInvalid);
  Stage(*policy, {1, 1, 0});
  REQUIRE(policy->CompleteStep().has_value());
  CHECK(*policy->CompleteStep() == 1);
  policy->Commit();
  CHECK(policy->OnPush({0, 2, 0}) == PushDecision::kInvalid);
  CHECK_FALSE(policy->CompleteStep().has_value());
  CHECK(policy->OnPull(0, 2) == PullDecision::kReady);
}

TEST_CASE("A sync pull gets exactly its step") {
  auto policy = Make(1, 100, {0});
  Stage(*policy, {0, 0, 0});
  CHECK(policy->OnPull(0, 0) == PullDecision::kReady);
  CHECK(policy->OnPull(0, 1) == PullDecision::kWait);  // staged, not committed
  policy->Commit();
  CHECK(policy->OnPull(0, 0) == PullDecision::kPast);
  CHECK(policy->OnPull(0, 1) == PullDecision::kReady);
  CHECK(policy->OnPull(0, 2) == PullDecision::kWait);
}

TEST_CASE("A waiting sync pull names the owners of the missing parts") {
  // Live ranks 1, 4, 6: part p belongs to the (p mod 3)-th of them.
  auto policy = Make(5, 100, {4, 1, 6});
  CHECK(policy->WaitingFor(1, 1) == Workers{1, 4, 6});
  CHECK(policy->WaitingFor(1, 0).empty());
  Stage(*policy, {1, 0, 0});
  CHECK(policy->WaitingFor(1, 1) == Workers{1, 4, 6});  // part 3 belongs to rank 1 too
  Stage(*policy, {1, 0, 3});
  CHECK(policy->WaitingFor(1, 1) == Workers{4, 6});
  Stage(*policy, {4, 0, 1});
  Stage(*policy, {4, 0, 4});
  CHECK(policy->WaitingFor(1, 1) == Workers{6});
  // When rank 6 dies, its part goes to another worker: of ranks 1 and 4, rank 1 gets part 2.
  policy->Remove(6);
  CHECK(policy->WaitingFor(4, 1) == Workers{1});
  Stage(*policy, {1, 0, 2});
  CHECK(policy->WaitingFor(4, 1).empty());
  CHECK(policy->CompleteStep().has_value());
}

TEST_CASE(
    "A waiting sync pull names the owners of the missing parts by their shares, if these are all parts") {
  auto policy = Make(5, 100, {4, 1, 6});
  policy->SetShare(1, 3);
  policy->SetShare(4, 1);
  Stage(*policy, {4, 0, 2});
  CHECK(policy->WaitingFor(6, 1) == Workers{1, 4});  // 3 and 1 are not 5: parts 0, 1, 3 and 4 by rank
  policy->SetShare(6, 1);
  Stage(*policy, {1, 0, 0});
  Stage(*policy, {1, 0, 1});
  CHECK(policy->WaitingFor(6, 1) == Workers{4, 6});
  policy->Remove(4);
  CHECK(policy->WaitingFor(6, 1) == Workers{1, 6});  // 3 and 1 again: part 3 is rank 6's, part 4 rank 1's
}

TEST_CASE("Membership moves no sync step; a worker joins at the open one") {
  auto policy = Make(2, 100, {0, 1});
  Stage(*policy, {0, 0, 0});
  policy->Remove(0);
  policy->Forget(1);
  CHECK(policy->OnPush({0, 0, 0}) == PushDecision::kRepeat);
  CHECK(policy->JoinClock() == 0);
  policy->Admit(2, 7);  // in sync the clock is the step, whatever the caller asks for
  CHECK(policy->JoinClock() == 0);
  Stage(*policy, {2, 0, 1});
  policy->Commit();
  CHECK(policy->JoinClock() == 1);
  REQUIRE(policy->Clocks().size() == 1);
  CHECK(policy->Clocks()[0].worker == 2);
  CHECK(policy->Clocks()[0].clock == 1);
}

}  // namespace
}  // namespace weir
