// Servers that come back at another address: the reaction of a client that joined before, and of one that
// joins now.
#include <chrono>
#include <string>
#include <thread>
#include <vector>

#include "client/client.h"
#include "tests/client/client_fixture.h"
#include "tests/client/gate.h"
#include "tests/common/reserved_address.h"

namespace weir {
namespace {

using std::chrono::steady_clock;

TEST_CASE("a push in the air when its server dies is made at its new address, under the same key") {
  ClientFixture f(Async(ClientFixture::Large()));
  f.config.mutable_cluster()->set_server_wait_seconds(20);
  Gate begun, gate;
  f.HoldFirstPush(1, &begun, &gate);
  auto client = f.Join();
  OpenAtEnd open_at_end{gate};
  f.cluster.AddRange(1, 0, 5);
  const PullResult base = f.Pull(*client, 0);
  const Work work = f.NextWork(*client);
  const Future<PushPullResult> both = client->PushPull(work, base, f.Gradient(), f.Weights());
  begun.Wait();
  // The server was killed and is up elsewhere; or it only hangs, and another has taken its place.
  SECTION("it is dead") { f.cluster.Kill(1); }
  SECTION("it hangs") {}
  f.cluster.Move(1);
  const auto& result = both.Get();
  INFO(result.status());
  REQUIRE(result.ok());
  CHECK(result->push.applied);
  CHECK(f.WeightsAre(1));
  const auto arrived = f.PushesOf(1);
  REQUIRE(arrived.size() == 1);
  CHECK(arrived[0].stream == 2);
  CHECK(arrived[0].header.clock() == work.clock);
  CHECK(arrived[0].header.batch_plus_one() == work.batch + 1);
  CHECK(arrived[0].header.caller().incarnation() == 7);
  CHECK((arrived[0].gradient == f.GradientOf(1)));
  // Later pushes go there as well.
  REQUIRE(client->Push(f.NextWork(*client), result->pull, f.Gradient()).Get().ok());
  CHECK(f.PushesOf(1).back().stream == 2);
  CHECK(client->Leave().ok());
}

TEST_CASE("a heartbeat that brings no news leaves a server where it has moved to") {
  FakeCluster::Options options = Async(ClientFixture::Small());
  options.lease_seconds = 0.15;  // a third of it later there is an answer without news
  ClientFixture f(options);
  auto client = f.Join();
  f.cluster.Kill(1);
  f.cluster.Move(1);
  f.cluster.AwaitHeartbeats(3, 2);
  for (const v1::HeartbeatRequest& beat : f.cluster.heartbeats()) CHECK(beat.only_news());
  CHECK(client->Pull(0, f.Weights()).Get().ok());
  CHECK(client->Leave().ok());
}

TEST_CASE("a revision is known only when the old address is left") {
  ClientFixture f(Async(ClientFixture::Small()));
  Gate gate;
  f.cluster.on_pull = [&](uint32_t shard, size_t nth) -> std::optional<grpc::Status> {
    if (shard == 1 && nth == 1) gate.Wait();
    return std::nullopt;
  };
  auto client = f.Join();
  OpenAtEnd open_at_end{gate};
  const Future<PullResult> pull = client->Pull(0, f.Weights());
  f.cluster.AwaitPulls(1, 1);
  f.cluster.Move(1);
  const auto end = steady_clock::now() + std::chrono::seconds(20);
  const auto known = [&] {
    const auto beats = f.cluster.heartbeats();
    return !beats.empty() && beats.back().known_revision() == 2;
  };
  while (!known() && steady_clock::now() < end) std::this_thread::yield();
  REQUIRE(known());
  REQUIRE(pull.Get().ok());
  CHECK(f.cluster.pulls(1).size() == 2);
  CHECK(f.cluster.streams(1) == 2);
  CHECK(f.cluster.streams(0) == 1);
}

TEST_CASE("a server moves, and moves again, and back") {
  FakeCluster::Options options = Async(ClientFixture::Small());
  options.unix_sockets = true;
  ClientFixture f(options);
  f.config.mutable_cluster()->set_server_wait_seconds(20);
  auto client = f.Join();
  f.Pull(*client, 0);
  for (int move = 0; move < 3; ++move) {
    f.cluster.Kill(1);
    const Future<PullResult> pull = client->Pull(0, f.Weights());
    if (move < 2) f.cluster.Move(1);
    if (move == 2) f.cluster.MoveBack(1);
    INFO(move << ": " << pull.Get().status());
    REQUIRE(pull.Get().ok());
  }
}

TEST_CASE("a reader reads where the servers are") {
  ClientFixture f(Async(ClientFixture::Small()));
  f.config.mutable_cluster()->set_server_wait_seconds(20);
  f.options.reader = true;
  f.options.train_examples = 0;
  auto client = f.Join();
  REQUIRE(client->PullSnapshot(f.Weights()).Get().ok());
  f.cluster.Kill(1);
  f.cluster.Move(1);
  const auto again = client->PullSnapshot(f.Weights()).Get();
  INFO(again.status());
  CHECK(again.ok());
}

TEST_CASE("who joins uses its own spec, but for servers that have moved") {
  ClientFixture f(ClientFixture::Small());
  // ps:0's addresses of the servers; this client reaches them in another way.
  const ReservedAddress nobody;
  f.cluster.edit_join = [&](v1::JoinReply* reply) {
    reply->add_ps_addresses(f.cluster.addresses()[0]);
    reply->add_ps_addresses(nobody.get().ToString());
  };
  SECTION("none has") {}
  SECTION("one has") {
    f.cluster.Kill(1);
    f.cluster.Move(1);
  }
  auto client = f.Join();
  f.Pull(*client, 0);
  CHECK(f.cluster.streams(1) == 1);
}

TEST_CASE("who joins a job with fewer shards than servers uses its own spec for those, too") {
  ClientFixture f(ClientFixture::Small());
  f.config.mutable_cluster()->set_start_seconds(5);
  const ReservedAddress nobody, standby;
  f.options.servers.push_back(standby.get().ToString());
  f.cluster.edit_join = [&](v1::JoinReply* reply) {
    reply->add_ps_addresses(f.cluster.addresses()[0]);
    reply->add_ps_addresses(nobody.get().ToString());
  };
  auto client = f.Join();
  f.Pull(*client, 0);
  CHECK(f.cluster.streams(1) == 1);
}

TEST_CASE("a spec that is out of date: the server is found where ps:0 reaches it") {
  FakeCluster::Options options = ClientFixture::Small();
  options.unix_sockets = true;
  ClientFixture f(options);
  f.config.mutable_cluster()->set_server_wait_seconds(20);
  const ReservedAddress nobody;
  f.options.servers[1] = nobody.get().ToString();
  f.cluster.edit_join = [&](v1::JoinReply* reply) {
    for (const std::string& address : f.cluster.addresses()) reply->add_ps_addresses(address);
  };
  auto client = f.Join();
  f.Pull(*client, 0);
  CHECK(f.cluster.streams(1) == 1);
  // Now the shard's own address is the one that the client uses.
  f.cluster.Kill(1);
  f.cluster.Move(1);
  f.Pull(*client, 0);
  f.cluster.MoveBack(1);
  f.Pull(*client, 0);
  CHECK(f.cluster.streams(1) == 3);
}

}  // namespace
}  // namespace weir
