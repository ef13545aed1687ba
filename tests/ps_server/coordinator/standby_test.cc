// Servers that hold no shard, since the model is small (server.min_shard_kib).
#include <string>
#include <vector>

#include "catch2/catch.hpp"
#include "tests/ps_server/coordinator/coordinator_fixture.h"

namespace weir {
namespace {

constexpr auto kSync = v1::ConsistencyConfig::MODE_SYNC;
constexpr auto kAsync = v1::ConsistencyConfig::MODE_ASYNC;

bool WasTold(const FakeShard& shard) { return !shard.Sent(v1::ControlMessage::kShutdown).empty(); }

TEST_CASE("A small model has its shards on the first servers, and the others stand by") {
  CoordinatorFixture f(kSync, 2, 3);
  f.config.mutable_server()->set_min_shard_kib(1024);
  f.StartJob();
  CHECK(f.members[0].num_shards() == 1);
  REQUIRE(f.members[0].ps_addresses_size() == 1);
  CHECK(f.members[0].ps_addresses(0) == f.addresses[0]);
  CHECK(f.members[0].membership().shard_incarnations_size() == 1);
  CHECK(f.shards[0]->LastInstall().num_shards() == 1);
  CHECK(f.Task("ps:0").state() == "live");
  for (int server : {1, 2}) {
    CHECK(f.shards[server]->Sent(v1::ControlMessage::kInstall).empty());
    CHECK(f.shards[server]->Sent(v1::ControlMessage::kMembership).empty());
    CHECK(f.Task("ps:" + std::to_string(server)).state() == "standby");
  }
  CHECK(f.Status().num_shards() == 3);

  // One shard commits a step, and pins a version.
  f.shards[0]->Staged(0);
  CHECK(f.shards[0]->Sent(v1::ControlMessage::kCommit).size() == 1);
  CHECK(f.shards[1]->Sent(v1::ControlMessage::kCommit).empty());
  CHECK(f.Pin()->times == 1);
  CHECK(f.shards[1]->Sent(v1::ControlMessage::kPin).empty());
}

TEST_CASE("The loss of a server that stands by changes nothing, and it may come back") {
  CoordinatorFixture f(kSync);
  f.config.mutable_server()->set_min_shard_kib(1024);
  f.StartJob();
  SECTION("its link breaks") {
    f.shards[1]->connects = false;
    f.shards[1]->Break();
    f.Run(absl::Seconds(20), f.members);
    CHECK(f.Task("ps:1").state() == "expected");
    f.shards[1]->events.connected();
  }
  SECTION("it falls silent") {
    f.shards[1]->answers_pings = false;
    f.Run(absl::Seconds(20), f.members);
    f.shards[1]->answers_pings = true;
    f.Run(absl::Seconds(11), f.members);
  }
  CHECK(f.failure == "");
  CHECK(f.Status().state() == v1::RUNNING);
  CHECK(f.Status().recoveries() == 0);
  CHECK(f.Task("ps:1").state() == "standby");
}

TEST_CASE("All servers hear of the end, and a server that stands by does not delay it") {
  CoordinatorFixture f(kSync);
  f.config.mutable_server()->set_min_shard_kib(1024);
  f.StartJob();
  SECTION("the job is done") {
    f.shards[1]->answers_pings = false;
    f.Steps(4);
    for (const v1::JoinReply& member : f.members) f.Leave(member);
    f.Run(absl::Seconds(1));
    CHECK(f.ends == 1);
    CHECK(f.failure == "");
    CHECK(f.final_status.state() == v1::DONE);
  }
  SECTION("the job fails") {
    f.coordinator->Fail("it ends");
    CHECK(f.failure == "it ends");
  }
  CHECK(WasTold(*f.shards[0]));
  CHECK(WasTold(*f.shards[1]));
}

TEST_CASE("A job starts once all its servers are there, those that will stand by included") {
  CoordinatorFixture f(kAsync);
  f.config.mutable_server()->set_min_shard_kib(1024);
  f.shards[1]->connects = false;
  f.Start();
  f.Join(0);
  f.Join(1);
  CHECK(f.Status().state() == v1::STARTING);
  REQUIRE(f.Status().waiting_for_size() == 1);
  CHECK(f.Status().waiting_for(0) == "ps:1 at 10.0.0.1:2222");
  f.shards[1]->events.connected();
  CHECK(f.Status().state() == v1::RUNNING);
}

TEST_CASE("A job that goes back to a checkpoint does not wait for a server that stands by") {
  CoordinatorFixture f(kSync);
  f.config.mutable_server()->set_min_shard_kib(1024);
  f.disk = std::make_shared<FakeDisk>();
  f.StartJob();
  f.shards[1]->connects = false;
  f.shards[1]->Kill();
  CHECK(f.Status().state() == v1::RUNNING);
  f.shards[0]->Kill();
  f.Run(absl::Milliseconds(100));
  f.Join(0, 2000);
  f.Join(1, 2001);
  CHECK(f.Status().state() == v1::RUNNING);
  CHECK(f.Status().recoveries() == 1);
}

TEST_CASE("A ps:0 that is started again does not wait for a server that stands by") {
  CoordinatorFixture f(kSync);
  f.config.mutable_server()->set_min_shard_kib(1024);
  f.disk = std::make_shared<FakeDisk>();
  f.train_examples = 8 * 2 * 10;
  f.StartJob();
  f.Steps(4);
  f.Checkpoint()->reply();
  f.shards[1]->connects = false;
  f.Restart();
  f.Join(1, 7001);
  CHECK(f.Status().state() == v1::RUNNING);
  CHECK(f.Status().step() == 4);
}

TEST_CASE("A program at the address of a server that stands by, which refuses ps:0, ends no job") {
  CoordinatorFixture f(kSync);
  f.config.mutable_server()->set_min_shard_kib(1024);
  if (GENERATE(false, true)) f.disk = std::make_shared<FakeDisk>();
  f.StartJob();
  for (const absl::Status& status :
       {absl::UnauthenticatedError("another token"), absl::UnimplementedError("no such service"),
        absl::FailedPreconditionError("another coordinator has this shard")}) {
    f.shards[1]->events.ended(status);
    f.Run(absl::Seconds(1), f.members);
    CHECK(f.failure == "");
    CHECK(f.Status().state() == v1::RUNNING);
  }
}

TEST_CASE("A model is on as many servers as can hold min_shard_kib each") {
  CoordinatorFixture f(kSync, 2, 3);
  f.model = ModelSpec{{{"w", {600, 1024}, TensorKind::kParameter, Initializer::Zeros()}}};
  f.config.mutable_server()->set_min_shard_kib(1024);  // 600 x 1024 x 4 bytes are 2.3 of these
  f.StartJob();
  CHECK(f.members[0].num_shards() == 2);
  CHECK(f.Task("ps:1").state() == "live");
  CHECK(f.Task("ps:2").state() == "standby");
}

}  // namespace
}  // namespace weir
