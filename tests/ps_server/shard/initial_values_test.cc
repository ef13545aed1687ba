#include "ps_server/shard/initial_values.h"

#include <string>

#include "catch2/catch.hpp"
#include "ps_server/consistency/policy.h"

namespace weir {
namespace {

using Catch::Contains;

// Members 0 and 1 of epoch 1, with incarnations 100 and 101.
struct Fixture {
  Fixture() {
    v1::Membership membership;
    membership.set_epoch(1);
    for (uint32_t worker : {0, 1}) {
      v1::Member& member = *membership.add_members();
      member.set_worker(worker);
      member.set_incarnation(100 + worker);
      member.set_task("worker:" + std::to_string(worker));
    }
    members.Follow(membership, *policy);
    initial.Await();
  }
  v1::Caller CallerOf(uint32_t worker, uint64_t epoch = 1) const {
    v1::Caller caller;
    caller.set_worker(worker);
    caller.set_incarnation(100 + worker);
    caller.set_epoch(epoch);
    return caller;
  }
  std::optional<Verdict> Tell(uint64_t uploader, uint64_t values_of = 0) {
    v1::SetMembership message;
    message.mutable_membership()->set_uploader(uploader);
    message.set_values_of(values_of);
    return initial.Follow(message);
  }

  std::unique_ptr<ConsistencyPolicy> policy = MakeAsyncPolicy();
  ShardMembers members{/*keeps_clocks=*/true};
  InitialValues initial;
};

TEST_CASE("InitialValues: only the member that uploads is taken") {
  Fixture f;
  CHECK_FALSE(f.Tell(101).value().outcome == v1::OK);
  CHECK_FALSE(f.initial.Answer(f.CallerOf(1), f.members).has_value());
  const auto other = f.initial.Answer(f.CallerOf(0), f.members);
  REQUIRE(other.has_value());
  CHECK_THAT(std::string(other->status().message()), Contains("worker:0") && Contains("incarnation 101"));
  CHECK(absl::IsUnavailable(f.initial.Answer(f.CallerOf(0, 2), f.members)->status()));
}

TEST_CASE("InitialValues: a call waits until the coordinator has the values of all shards") {
  Fixture f;
  f.Tell(100);
  int answers = 0;
  f.initial.Wait(
      {7, [&](const absl::StatusOr<PushAnswer>& answer) { answers += absl::IsCancelled(answer.status()); },
       absl::UnixEpoch()});
  f.initial.Wait({7, [](const absl::StatusOr<PushAnswer>&) {}, absl::UnixEpoch()});
  CHECK(answers == 1);                      // the first call, which the second one repeats
  CHECK_FALSE(f.Tell(0, 100).has_value());  // nothing is staged here
  CHECK(f.initial.awaited());
  CHECK(f.Tell(101).value().outcome == v1::FENCED);
  CHECK(f.initial.waiter().has_value());
}

}  // namespace
}  // namespace weir
