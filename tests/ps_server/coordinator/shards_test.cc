// The coordinator and its shards: lost shards, pins, status.
#include <cmath>
#include <string>
#include <vector>

#include "catch2/catch.hpp"
#include "common/protocol/job_failure.h"
#include "tests/ps_server/coordinator/coordinator_fixture.h"

namespace weir {
namespace {

using Catch::Contains;
constexpr auto kSync = v1::ConsistencyConfig::MODE_SYNC;

TEST_CASE("A shard whose link breaks fails the job, by name and address, and everybody is told") {
  CoordinatorFixture f(kSync);
  f.StartJob();
  const auto parked = f.Heartbeat(f.members[0], f.Heartbeat(f.members[0])->reply().revision());
  f.shards[1]->events.ended(absl::UnavailableError("it ended its control stream"));
  CHECK(f.ends == 0);  // worker:1 has not asked yet
  f.HeartbeatAll();
  CHECK(f.ends == 1);
  CHECK_THAT(f.failure, Contains("ps:1 at 10.0.0.1:2222") && Contains("lost") && Contains("control stream"));
  CHECK(parked->reply().state() == v1::FAILED);
  CHECK(parked->reply().failure() == f.failure);
  CHECK(f.shards[0]->Sent(v1::ControlMessage::kShutdown)[0].shutdown().failure() == f.failure);
  CHECK(f.Status().state() == v1::FAILED);
  CHECK(f.Status().failure() == f.failure);
  f.shards[0]->events.ended(absl::UnavailableError("it went, too"));
  CHECK(f.ends == 1);
}

// Ends a job's work. The shards were told of the end, but ps:1 has not confirmed it.
void EndUnconfirmed(CoordinatorFixture& f) {
  f.train_examples = 16;
  f.StartJob();
  f.shards[1]->confirms_end = false;
  f.Steps(1);
  for (const auto& member : f.members) f.Leave(member);
  REQUIRE(f.Status().state() == v1::DONE);
  REQUIRE(f.shards[1]->Sent(v1::ControlMessage::kShutdown).size() == 1);
  CHECK(f.ends == 0);
}

TEST_CASE("A job that is done ends when every shard has confirmed that it knows") {
  CoordinatorFixture f(kSync);
  EndUnconfirmed(f);
  SECTION("late") {
    f.Run(absl::Seconds(4));
    CHECK(f.ends == 0);
    f.shards[1]->events.ended(absl::OkStatus());
  }
  SECTION("on another link, since the first one broke") {
    f.shards[1]->Break();
    CHECK(f.ends == 0);
    f.shards[1]->confirms_end = true;
    f.coordinator->Tick();
    const auto told = f.shards[1]->Sent(v1::ControlMessage::kShutdown);
    REQUIRE(told.size() == 2);
    CHECK(told[1].shutdown().failure() == "");
  }
  SECTION("never: its process is gone, so nobody is there to be told") {
    f.shards[1]->connects = false;
    f.shards[1]->Break("Broken pipe");
    f.coordinator->Tick();
    CHECK(f.ends == 0);
    f.shards[1]->events.ended(absl::UnavailableError("connection refused"));
  }
  SECTION("never: its link broke, and another one does not come about for two seconds") {
    f.shards[1]->connects = false;
    f.shards[1]->Break();
    f.Run(absl::Seconds(1.5));
    CHECK(f.ends == 0);
    f.Run(absl::Seconds(1));
  }
  SECTION("never: after cluster.server_wait_seconds") {
    f.Run(absl::Seconds(4.5));
    f.shards[1]->connects = false;
    f.shards[1]->Break();
    CHECK(f.ends == 0);
    f.Run(absl::Seconds(1));
  }
  SECTION("never, and somebody wants it to end") { f.coordinator->Fail("ps:0 got signal 15"); }
  CHECK(f.ends == 1);
  CHECK(f.failure == "");
  CHECK(f.final_status.state() == v1::DONE);
  f.Run(absl::Seconds(10));
  CHECK(f.ends == 1);
}

TEST_CASE("A job that has failed waits two seconds for its shards to know") {
  CoordinatorFixture f(kSync, 2, 3);
  f.StartJob();
  f.shards[2]->confirms_end = false;
  f.shards[1]->Break();
  f.HeartbeatAll();
  CHECK(f.ends == 0);
  SECTION("one confirms it") { f.shards[2]->events.ended(absl::OkStatus()); }
  SECTION("none does") { f.Run(absl::Seconds(2.25)); }
  CHECK(f.ends == 1);
  CHECK_THAT(f.failure, Contains("ps:1"));
  // If the job has no checkpoints and the link of a shard breaks, the shard ends by itself.
  CHECK(f.shards[1]->Sent(v1::ControlMessage::kShutdown).empty());
}

TEST_CASE("The last ping says so, and pings before it do not") {
  CoordinatorFixture f(kSync);
  f.train_examples = 16;
  f.StartJob();
  f.Run(absl::Seconds(2), f.members);
  for (const auto& message : f.shards[1]->Sent(v1::ControlMessage::kPing)) CHECK_FALSE(message.ping().last());
  f.shards[1]->answers_pings = false;
  f.Steps(1);
  for (const auto& member : f.members) f.Leave(member);
  CHECK(f.shards[1]->Sent(v1::ControlMessage::kPing).back().ping().last());
  // The following pings say so, too, until one is answered.
  f.Run(absl::Seconds(2));
  CHECK(f.shards[1]->Sent(v1::ControlMessage::kPing).back().ping().last());
}

TEST_CASE("A silent shard fails the job after a lease") {
  CoordinatorFixture f(kSync);
  f.StartJob();
  f.Run(absl::Seconds(30), f.members);
  CHECK(f.ends == 0);
  f.shards[1]->answers_pings = false;
  f.Run(absl::Seconds(9), f.members);
  CHECK(f.ends == 0);
  f.Run(absl::Seconds(2), f.members);
  CHECK(f.ends == 1);
  CHECK_THAT(f.failure, Contains("ps:1 at 10.0.0.1:2222") && Contains("nothing was heard"));
}

TEST_CASE("Shards are pinged while workers are still to come, however long that takes") {
  CoordinatorFixture f(kSync);
  f.Start();
  f.Run(absl::Seconds(50));
  CHECK(f.failure == "");
  // The pings make the shard wait, too, which also treats silence as loss.
  CHECK(f.shards[1]->Sent(v1::ControlMessage::kPing).size() > 20);
  for (auto& shard : f.shards) shard->installs = false;
  f.Join(0);
  f.Join(1);
  f.coordinator->Tick();  // before any shard could answer
  CHECK(f.failure == "");
  for (auto& shard : f.shards) shard->Installed();
  CHECK(f.Status().state() == v1::RUNNING);
}

TEST_CASE("A shard that goes silent before the start fails the job, too") {
  CoordinatorFixture f(kSync);
  f.shards[1]->answers_pings = false;
  f.Start();
  f.Run(absl::Seconds(11));
  CHECK_THAT(f.failure, Contains("ps:1 at 10.0.0.1:2222") && Contains("lost"));
}

TEST_CASE("A proxy that answers for a shard which is not there yet is asked again") {
  CoordinatorFixture f(kSync);
  f.shards[1]->connects = false;
  f.Start();
  for (int i = 0; i < 3; ++i) {
    f.shards[1]->events.ended(absl::UnavailableError("connection refused"));
    CHECK(f.failure == "");
    f.Run(absl::Seconds(1));
  }
  f.shards[1]->connects = true;
  f.shards[1]->events.ended(absl::UnavailableError("connection refused"));
  f.Run(absl::Seconds(1));
  f.Join(0);
  f.Join(1);
  CHECK(f.Status().state() == v1::RUNNING);
}

TEST_CASE("A shard that refuses to take part fails the job with its reason") {
  CoordinatorFixture f(kSync);
  f.shards[1]->install_error = "its config differs from that of ps:0: seed: expected 1, got 2";
  f.Start();
  const auto join = f.Join(0);
  f.Join(1);
  CHECK(f.ends == 1);
  CHECK_THAT(f.failure, Contains("ps:1 at 10.0.0.1:2222") && Contains("seed: expected 1, got 2"));
  CHECK(join->times == 1);
  CHECK(std::string(join->status().message()) == f.failure);
  CHECK(f.failure_kind == v1::FAILURE_LOST_PEER);

  CoordinatorFixture g(kSync);
  g.shards[1]->connects = false;
  g.Start();
  g.shards[1]->events.ended(absl::FailedPreconditionError("another coordinator has this shard"));
  CHECK_THAT(g.failure, Contains("cannot take part") && Contains("another coordinator"));
}

TEST_CASE("A shard that would refuse each time fails the job for good") {
  CoordinatorFixture f(kSync);
  f.shards[1]->install_error = "/runs/7 is of a different model from the job's";
  f.shards[1]->install_error_permanent = true;
  f.Start();
  const auto join = f.Join(0);
  f.Join(1);
  CHECK(f.failure_kind == v1::FAILURE_CONFIG);
  CHECK(join->status().code() == absl::StatusCode::kFailedPrecondition);
}

TEST_CASE("Status tells people what is going on, in every state") {
  CoordinatorFixture f(kSync);
  f.shards[1]->connects = false;
  f.Start();
  v1::ClusterStatus status = f.Status();
  CHECK(status.state() == v1::STARTING);
  CHECK(status.name() == "test");
  CHECK(status.mode() == "sync");
  CHECK(status.configured_workers() == 2);
  CHECK(status.waiting_for_size() == 3);
  CHECK(f.Task("ps:1").state() == "expected");
  f.shards[1]->events.connected();
  f.Join(0);
  CHECK_THAT(f.Status().waiting_for(0), Contains("rank 1"));
  f.Join(1);
  f.shards[0]->stats.set_pushes_applied(6);
  f.shards[0]->stats.mutable_version_staleness()->add_counts(5);
  f.shards[1]->stats.mutable_version_staleness()->add_counts(0);
  f.shards[1]->stats.mutable_version_staleness()->add_counts(5);
  f.shards[1]->stats.add_waits()->set_reason("worker:1 (at clock 3)");
  f.Run(absl::Seconds(1));
  status = f.Status();
  CHECK(status.state() == v1::RUNNING);
  CHECK(status.pushes() == 6);
  CHECK(status.version_staleness().count() == 10);
  CHECK(status.version_staleness().max() == 1);
  CHECK(status.seconds() == Approx(1));
  REQUIRE(status.waiting_for_size() == 1);
  CHECK(status.waiting_for(0) == "worker:1 (at clock 3) (on ps:1)");
  CHECK(f.Task("ps:1").state() == "live");
  CHECK(f.Task("ps:1").incarnation() == 701);
  f.coordinator->Fail("it ends");
  CHECK(f.Status().state() == v1::FAILED);
}

TEST_CASE("A server that says nothing is named first, and its last report does not pass for new") {
  CoordinatorFixture f(v1::ConsistencyConfig::MODE_ASYNC);
  f.train_examples = 8000;
  f.disk = std::make_shared<FakeDisk>();
  f.StartJob();
  f.shards[0]->stats.set_seconds_since_update(100);
  f.shards[0]->stats.add_waits()->set_reason("the commit");
  f.shards[1]->stats.set_seconds_since_update(0.125);
  f.shards[1]->stats.add_waits()->set_reason("worker:1 (at clock 3)");
  f.Run(absl::Seconds(1), f.members);
  CHECK(f.Status().waiting_for(0) == "the commit (on ps:0)");
  CHECK(f.Status().waits_size() == 2);
  f.shards[1]->answers_pings = false;
  f.Run(absl::Seconds(5), f.members);
  v1::ClusterStatus status = f.Status();
  REQUIRE(status.waiting_for_size() == 2);
  CHECK_THAT(status.waiting_for(0),
             Catch::StartsWith("ps:1 at 10.0.0.1:2222 to answer (nothing was heard of it for ") &&
                 Contains(": it stands still, or is cut off)"));
  CHECK(status.waiting_for(1) == "the commit (on ps:0)");
  const double silent = f.Task("ps:1").seconds_since_heard();
  CHECK(silent >= 4.5);
  CHECK(f.Task("ps:0").seconds_since_heard() < 1);
  CHECK(status.seconds_since_update() == Approx(0.125 + silent));
  // ps:1 answers again.
  f.shards[1]->answers_pings = true;
  f.Run(absl::Seconds(1), f.members);
  CHECK(f.Status().waiting_for(0) == "the commit (on ps:0)");
  CHECK(f.Status().seconds_since_update() < 1);
  // ps:1 is gone. The waits that it reported last no longer count, and the time of its last report is known.
  f.shards[1]->answers_pings = f.shards[1]->connects = false;
  f.Run(absl::Seconds(12), f.members);
  status = f.Status();
  CHECK(f.Task("ps:1").state() == "lost");
  CHECK(f.Task("ps:1").seconds_since_heard() >= 11);
  REQUIRE(status.waits_size() == 1);
  CHECK(status.waits(0).server() == "ps:0");
}

TEST_CASE("A coordinator that goes answers what it had parked") {
  CoordinatorFixture f(kSync);
  f.Start();
  const auto join = f.Join(0);
  f.coordinator.reset();
  CHECK(join->times == 1);
  CHECK(f.ends == 1);
}

}  // namespace
}  // namespace weir
