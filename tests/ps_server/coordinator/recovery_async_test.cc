// bounded, async: a lost shard comes back alone, while the others continue.
#include <string>
#include <vector>

#include "catch2/catch.hpp"
#include "tests/ps_server/coordinator/coordinator_fixture.h"

namespace weir {
namespace {

using Catch::Contains;
constexpr auto kBounded = v1::ConsistencyConfig::MODE_BOUNDED;

struct RecoveryFixture : CoordinatorFixture {
  explicit RecoveryFixture(uint32_t workers = 2, uint32_t shards = 2)
      : CoordinatorFixture(kBounded, workers, shards) {
    disk = std::make_shared<FakeDisk>();
  }
};

TEST_CASE("Another incarnation of a shard is restored alone; members keep theirs, under a new epoch") {
  RecoveryFixture f;
  f.StartJob();
  f.Checkpoint()->reply();
  const uint64_t epoch = f.Status().membership().epoch();
  const auto parked = f.Heartbeat(f.members[0], f.Heartbeat(f.members[0])->reply().revision());
  const auto range = f.NextRange(f.members[0]);
  f.shards[1]->Kill();
  CHECK(f.Status().state() == v1::RUNNING);
  CHECK_FALSE(parked->there());
  CHECK(f.Task("ps:1").state() == "lost");
  CHECK_THAT(f.Status().waiting_for(0), Contains("ps:1 at 10.0.0.1:2222 to come back"));
  CHECK(f.NextRange(f.members[1])->reply().has_range());  // the others continue

  f.Run(absl::Seconds(1), f.members);
  CHECK(f.shards[0]->Sent(v1::ControlMessage::kInstall).size() == 1);
  REQUIRE(f.shards[1]->Sent(v1::ControlMessage::kInstall).size() == 2);
  CHECK(f.shards[1]->LastInstall().restore().step() == 0);
  for (const auto& shard : f.shards) {
    const v1::Membership membership = shard->Membership();
    CHECK(membership.epoch() > epoch);
    REQUIRE(membership.members_size() == 2);
    for (int i = 0; i < 2; ++i) {
      CHECK(membership.members(i).incarnation() == f.members[i].incarnation());
      CHECK_FALSE(membership.members(i).joining());
    }
  }
  CHECK(f.Status().recoveries() == 1);
  CHECK(f.Status().waiting_for_size() == 0);
  CHECK(f.NextRange(f.members[0])->reply().range().id() == range->reply().range().id());
  f.shards[1]->stats.set_pushes_lost(7);
  f.Run(absl::Seconds(1), f.members);
  CHECK(f.Status().lost_pushes() == 7);
}

TEST_CASE("Workers hear at once which shard is another incarnation now") {
  RecoveryFixture f;
  f.StartJob();
  f.Checkpoint()->reply();
  f.shards[1]->installs = false;
  f.shards[1]->Kill();
  f.Run(absl::Seconds(1), f.members);
  const v1::HeartbeatReply before = f.Heartbeat(f.members[0])->reply();
  const auto parked = f.Heartbeat(f.members[0], before.revision());
  CHECK_FALSE(parked->there());
  f.shards[1]->Installed();
  REQUIRE(parked->there());
  const v1::Membership& now = parked->reply().membership();
  REQUIRE(now.shard_incarnations_size() == 2);
  CHECK(now.shard_incarnations(0) == f.members[0].membership().shard_incarnations(0));
  CHECK(now.shard_incarnations(1) != f.members[0].membership().shard_incarnations(1));
}

TEST_CASE("What a shard lacks in the end is lost, though nobody was left who could tell of it") {
  RecoveryFixture f(1);
  f.train_examples = 8 * 10;
  f.StartJob();
  f.shards[0]->stats.set_batches_settled(10);
  f.shards[1]->stats.set_batches_settled(7);
  f.shards[1]->stats.set_pushes_lost(1);
  std::vector<uint64_t> completed;
  for (auto next = f.NextRange(f.members[0]); next->reply().has_range();
       next = f.NextRange(f.members[0], completed)) {
    completed = {next->reply().range().id()};
    CHECK(f.Status().lost_pushes() <= 1);
  }
  f.Leave(f.members[0]);
  REQUIRE(f.ends == 1);
  CHECK(f.final_status.lost_pushes() == 3);
}

TEST_CASE("The same incarnation of a shard goes on as it is") {
  RecoveryFixture f;
  f.StartJob();
  const uint64_t epoch = f.Status().membership().epoch();
  f.shards[1]->Break();
  f.Run(absl::Seconds(1), f.members);
  CHECK(f.shards[1]->Sent(v1::ControlMessage::kInstall).size() == 1);
  CHECK(f.shards[1]->Membership().epoch() > epoch);
  CHECK(f.shards[1]->Membership().members_size() == 2);
  CHECK(f.Status().recoveries() == 1);
}

TEST_CASE("Without a checkpoint a lost shard starts at version 0 again") {
  RecoveryFixture f;
  f.StartJob();
  f.shards[1]->Kill();
  f.Run(absl::Seconds(1), f.members);
  CHECK_FALSE(f.shards[1]->LastInstall().has_restore());
  CHECK(f.Status().state() == v1::RUNNING);
}

TEST_CASE("A shard whose part of the newest checkpoint is damaged loads the one before, alone") {
  RecoveryFixture f;
  f.StartJob();
  f.Checkpoint()->reply();
  f.disk->before = *f.disk->newest;
  f.Run(absl::Seconds(1), f.members);
  const uint64_t newest = f.Checkpoint()->reply().step();
  REQUIRE(newest > 0);
  f.shards[1]->finds_damaged = newest;
  f.shards[1]->Kill();
  f.Run(absl::Seconds(1), f.members);
  CHECK(f.disk->passed_over == std::vector<uint64_t>{newest});
  CHECK(f.shards[0]->Sent(v1::ControlMessage::kInstall).size() == 1);
  CHECK(f.shards[1]->Sent(v1::ControlMessage::kInstall).size() == 3);
  CHECK(f.shards[1]->LastInstall().restore().step() == 0);
  CHECK(f.Status().state() == v1::RUNNING);
  CHECK(f.Status().membership().members_size() == 2);
  // The next checkpoint has a different name from the damaged one.
  CHECK(f.Checkpoint()->reply().step() > newest);
}

TEST_CASE("It dies again while it is restored; then it does not come back at all") {
  RecoveryFixture f;
  f.StartJob();
  f.Checkpoint()->reply();
  f.shards[1]->installs = false;
  f.shards[1]->Kill();
  f.Run(absl::Seconds(1), f.members);
  f.shards[1]->Kill();
  f.Run(absl::Seconds(1), f.members);
  CHECK(f.shards[1]->Sent(v1::ControlMessage::kInstall).size() == 3);
  CHECK_THAT(f.Status().waiting_for(0), Contains("to load its part of the model"));
  f.shards[1]->Installed();
  CHECK(f.Status().recoveries() == 1);
  f.shards[1]->connects = false;
  f.shards[1]->Kill();
  f.Run(absl::Seconds(6), f.members);
  CHECK_THAT(f.failure, Contains("ps:1 at 10.0.0.1:2222") && Contains("server_wait_seconds"));
}

TEST_CASE("A shard that is lost again while it is restored is waited for anew") {
  RecoveryFixture f;
  f.StartJob();
  f.Checkpoint()->reply();
  f.shards[1]->installs = false;
  f.shards[1]->Kill("the first reason");
  f.Run(absl::Seconds(6), f.members);  // the shard is there, and loads
  SECTION("once") {
    f.shards[1]->connects = false;
    f.shards[1]->Kill("the second reason");
    f.Run(absl::Seconds(4), f.members);
    CHECK(f.ends == 0);
    f.Run(absl::Seconds(2), f.members);
    CHECK_THAT(f.failure, Contains("the second reason") && Contains("server_wait_seconds"));
  }
  SECTION("again and again: not for ever") {
    for (int seconds = 6; seconds < 58; seconds += 4) {
      f.shards[1]->Kill();
      f.Run(absl::Seconds(4), f.members);
      REQUIRE(f.ends == 0);
    }
    for (int i = 0; i < 2; ++i) {
      f.shards[1]->Kill();
      f.Run(absl::Seconds(4), f.members);
    }
    CHECK_THAT(f.failure, Contains("ps:1 at 10.0.0.1:2222") && Contains("cluster.start_seconds = 60"));
  }
}

TEST_CASE("A worker that joins while a shard is away is admitted when it is back, however long that takes") {
  RecoveryFixture f;
  f.config.mutable_cluster()->set_min_workers(1);
  f.config.mutable_cluster()->set_server_wait_seconds(100);
  f.Start();
  const auto first = f.Join(0);
  f.shards[1]->connects = false;

  SECTION("it waits") {
    f.shards[1]->Kill();
    const auto join = f.Join(1);
    f.Run(absl::Seconds(30), {first->reply()});
    CHECK_FALSE(join->there());
    f.shards[1]->events.connected();
    CHECK(join->reply().membership().members_size() == 2);
  }
  SECTION("it was being admitted") {
    f.shards[1]->acknowledges = false;
    const auto join = f.Join(1);
    f.shards[1]->Kill();
    f.Run(absl::Seconds(30), {first->reply()});
    CHECK_FALSE(join->there());
    f.shards[1]->acknowledges = true;
    f.shards[1]->events.connected();
    CHECK(join->reply().membership().members_size() == 2);
  }
}

TEST_CASE("A shard that is lost at the very end: it is restored, and the job ends") {
  RecoveryFixture f;
  f.train_examples = 8 * 2;
  f.StartJob();
  const auto a = f.NextRange(f.members[0]), b = f.NextRange(f.members[1]);
  f.shards[1]->writes = false;
  f.NextRange(f.members[0], {a->reply().range().id()});
  f.NextRange(f.members[1], {b->reply().range().id()});
  CHECK(f.Status().state() == v1::DRAINING);
  f.shards[1]->Kill();
  f.shards[1]->writes = true;
  const auto leave = f.StartLeave(f.members[0]);
  CHECK_FALSE(leave->there());
  f.Run(absl::Seconds(3), {f.members[1]});
  CHECK(leave->status().ok());
  for (auto& shard : f.shards) shard->answers_pings = false;
  f.Leave(f.members[1]);
  CHECK(f.ends == 0);
  f.shards[1]->answers_pings = f.shards[0]->answers_pings = true;
  f.shards[0]->AnswerPing(f.shards[0]->Sent(v1::ControlMessage::kPing).back().ping().sequence());
  f.shards[1]->Break();  // the last ping is lost
  f.Run(absl::Seconds(1));
  CHECK(f.ends == 1);
  CHECK(f.failure == "");
}

TEST_CASE("A pin that a lost shard cannot confirm is answered at once") {
  RecoveryFixture f;
  f.StartJob();
  f.shards[1]->answers_pins = false;
  const auto pin = f.Pin();
  f.shards[1]->Kill();
  CHECK(pin->status().code() == absl::StatusCode::kUnavailable);
  CHECK_THAT(std::string(pin->status().message()), Contains("ps:1"));
}

}  // namespace
}  // namespace weir
