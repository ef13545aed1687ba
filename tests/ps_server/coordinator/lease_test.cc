// Leases, leaving, and the members that learn of it.
#include <string>
#include <vector>

#include "catch2/catch.hpp"
#include "tests/ps_server/coordinator/coordinator_fixture.h"

namespace weir {
namespace {

using Catch::Contains;
constexpr auto kSync = v1::ConsistencyConfig::MODE_SYNC;
constexpr auto kBounded = v1::ConsistencyConfig::MODE_BOUNDED;

TEST_CASE("A silent worker is taken out after its lease, with a new epoch on every shard") {
  CoordinatorFixture f(kBounded);
  f.StartJob();
  const uint64_t epoch = f.Status().membership().epoch();
  f.Run(absl::Seconds(9.5), {f.members[0]});
  CHECK(f.Status().membership().members_size() == 2);
  f.Run(absl::Seconds(1), {f.members[0]});
  CHECK(f.Status().membership().members_size() == 1);
  CHECK(f.Status().membership().epoch() == epoch + 1);
  for (const auto& shard : f.shards) {
    CHECK(shard->Membership().epoch() == epoch + 1);
    REQUIRE(shard->Membership().members_size() == 1);
    CHECK(shard->Membership().members(0).worker() == 0);
  }
  CHECK(f.Task("worker:1").state() == "lost");
  CHECK(f.Status().state() == v1::RUNNING);
}

TEST_CASE("A worker that is asked to end hands its range to others at once, and its rank may come again") {
  CoordinatorFixture f(kBounded);
  f.StartJob();
  const auto theirs = f.NextRange(f.members[1]);
  REQUIRE(theirs->reply().has_range());
  f.Leave(f.members[1], false, "got signal 15", v1::FAILURE_DRAINED);
  CHECK(f.Status().membership().members_size() == 1);
  const auto taken = f.NextRange(f.members[0]);
  REQUIRE(taken->reply().has_range());
  CHECK(taken->reply().range().first_batch() == theirs->reply().range().first_batch());
  // The last worker is asked to end, too. If all workers had given up, the job would end here.
  f.Leave(f.members[0], false, "got signal 15", v1::FAILURE_DRAINED);
  CHECK(f.ends == 0);
  CHECK(f.Status().state() == v1::RUNNING);
  const auto again = f.Join(1, 77);
  REQUIRE(again->there());
  CHECK(f.NextRange(again->reply())->reply().has_range());
}

TEST_CASE("A worker that was admitted and has never sent a heartbeat is taken out soon after the grace") {
  // The worker's process was killed when its Join was answered: no connection shows that.
  CoordinatorFixture f(kBounded);
  f.Start();
  const auto first = f.Join(0);
  const auto second = f.Join(1);
  f.Heartbeat(first->reply());
  REQUIRE(second->there());
  f.Run(absl::Seconds(2), {first->reply()});
  CHECK(f.Status().membership().members_size() == 2);
  f.Run(absl::Seconds(1), {first->reply()});
  CHECK(f.Status().membership().members_size() == 1);
}

TEST_CASE("A job that has failed stays until each member has left, two seconds at most") {
  CoordinatorFixture f(kBounded, 3);
  f.StartJob();
  const auto reader = f.JoinReader();
  const uint64_t revision = f.Heartbeat(f.members[0])->reply().revision();
  const auto parked = f.Heartbeat(f.members[0], revision);
  REQUIRE_FALSE(parked->there());
  f.shards[1]->events.ended(absl::UnavailableError("its stream ended"));
  CHECK_THAT(parked->reply().failure(), Contains("its stream ended"));
  CHECK_THAT(f.Heartbeat(f.members[1])->reply().failure(), Contains("its stream ended"));
  CHECK_THAT(f.Heartbeat(reader->reply())->reply().failure(), Contains("its stream ended"));
  // Each answer may be lost.
  CHECK(f.ends == 0);
  // A connection may be lost, too: the shard of this process ends its streams when the job fails.
  for (const auto& member : f.members) f.coordinator->OnDisconnect(f.CallerOf(member));
  f.coordinator->OnDisconnect(f.CallerOf(reader->reply()));
  CHECK(f.ends == 0);
  for (const auto& member : f.members) f.Leave(member, false, "the job has failed");
  CHECK(f.ends == 0);
  SECTION("the last one leaves") { f.Leave(reader->reply(), false, "the job has failed"); }
  SECTION("the last one's process is gone") { f.Run(absl::Seconds(2.25)); }
  SECTION("somebody wants it to end") { f.coordinator->Fail("ps:0 got signal 15"); }
  CHECK(f.ends == 1);
  CHECK_THAT(f.failure, Contains("its stream ended"));
  f.Run(absl::Seconds(5));
  CHECK(f.ends == 1);
}

TEST_CASE("Heartbeats keep a lease, for as long as it may be") {
  CoordinatorFixture f(kBounded);
  f.StartJob();
  f.Run(absl::Seconds(100), f.members);
  CHECK(f.Status().membership().members_size() == 2);
}

TEST_CASE("A short lease keeps shards and workers that answer") {
  CoordinatorFixture f(kBounded);
  f.config.mutable_cluster()->set_lease_seconds(0.2);
  f.StartJob();
  for (int i = 0; i < 400; ++i) {
    f.clock.Advance(absl::Milliseconds(25));  // the server's tick
    for (const auto& member : f.members) f.Heartbeat(member);
    f.coordinator->Tick();
  }
  CHECK(f.failure == "");
  CHECK(f.Status().membership().members_size() == 2);
}

TEST_CASE("A broken connection costs the grace only, unless the worker is back") {
  CoordinatorFixture f(kBounded);
  f.StartJob();
  const auto revision = f.Heartbeat(f.members[1])->reply().revision();
  const auto parked = f.Heartbeat(f.members[1], revision);
  f.coordinator->OnDisconnect(f.CallerOf(f.members[1]));
  CHECK(parked->there());  // the call does not hang
  f.Run(absl::Milliseconds(750), {f.members[0]});
  CHECK(f.Status().membership().members_size() == 2);
  f.Heartbeat(f.members[1]);
  f.Heartbeat(f.members[1]);
  f.Run(absl::Seconds(5), {f.members[0]});
  CHECK(f.Status().membership().members_size() == 2);
  v1::Caller other_incarnation = f.CallerOf(f.members[1]);
  other_incarnation.set_incarnation(other_incarnation.incarnation() + 50);
  f.coordinator->OnDisconnect(other_incarnation);
  f.coordinator->OnDisconnect(f.CallerOf(f.members[1]));
  f.Run(absl::Seconds(1.25), {f.members[0]});
  CHECK(f.Status().membership().members_size() == 1);
}

TEST_CASE(
    "Only a heartbeat brings back a lease: another call may have been on its way when the worker was "
    "killed") {
  CoordinatorFixture f(kBounded);
  f.StartJob();
  f.coordinator->OnDisconnect(f.CallerOf(f.members[1]));
  f.NextRange(f.members[1]);
  f.Run(absl::Seconds(1.25), {f.members[0]});
  CHECK(f.Status().membership().members_size() == 1);
}

TEST_CASE(
    "A heartbeat that was on its way when its worker was killed brings back no lease, one that follows an "
    "answer does") {
  CoordinatorFixture f(kBounded);
  f.StartJob();
  const auto revision = f.Heartbeat(f.members[1])->reply().revision();
  f.coordinator->OnDisconnect(f.CallerOf(f.members[1]));
  CHECK(f.Heartbeat(f.members[1], revision)->there());  // so that the next heartbeat comes soon
  SECTION("it is dead") {
    f.Run(absl::Seconds(1.25), {f.members[0]});
    CHECK(f.Status().membership().members_size() == 1);
  }
  SECTION("it lives") {
    f.Run(absl::Milliseconds(500), {f.members[0]});
    CHECK_FALSE(f.Heartbeat(f.members[1], revision)->there());
    f.Run(absl::Seconds(9), {f.members[0]});
    CHECK(f.Status().membership().members_size() == 2);
  }
}

TEST_CASE("A worker that is killed while it is admitted costs the grace, and the job starts without it") {
  CoordinatorFixture f(kBounded);
  f.Start();
  f.shards[0]->acknowledges = false;
  const auto first = f.Join(f.JoinRequest(0), /*call=*/7);
  const auto second = f.Join(f.JoinRequest(1), /*call=*/8);
  REQUIRE_FALSE(second->there());
  SECTION("before the servers know it") {
    f.coordinator->OnJoinCancelled(1001, 8);
    f.shards[0]->acknowledges = true;
    f.shards[0]->Acknowledge(f.shards[0]->Membership().epoch());
  }
  SECTION("and the answer does not reach it") {
    f.shards[0]->acknowledges = true;
    f.shards[0]->Acknowledge(f.shards[0]->Membership().epoch());
    REQUIRE(second->there());
    f.coordinator->OnJoinCancelled(1001, 8);
  }
  f.Run(absl::Seconds(1.25), {first->reply()});
  CHECK(f.Status().state() == v1::RUNNING);
  CHECK(f.Status().membership().members_size() == 1);
}

TEST_CASE("A worker that is out is told so by its heartbeat") {
  CoordinatorFixture f(kBounded);
  f.StartJob();
  f.Run(absl::Seconds(11), {f.members[0]});
  const auto fenced = f.Heartbeat(f.members[1], 1);
  CHECK(fenced->reply().fenced());
  CHECK(fenced->reply().state() == v1::RUNNING);
  CHECK_FALSE(f.Heartbeat(f.members[0])->reply().fenced());
  CHECK(f.NextRange(f.members[1])->reply().fenced());
}

TEST_CASE("Calls of a worker that are parked when it is taken out are answered") {
  CoordinatorFixture f(kBounded, 1);
  f.train_examples = 8;  // one batch
  f.StartJob();
  f.NextRange(f.members[0]);
  const auto revision = f.Heartbeat(f.members[0])->reply().revision();
  const auto parked = f.Heartbeat(f.members[0], revision);
  f.Leave(f.members[0], false, "out of memory");
  CHECK(parked->reply().fenced());
  CHECK(f.Task("worker:0").state() == "lost");
}

TEST_CASE("A heartbeat is parked until something changes, a third of the lease, or the next one") {
  CoordinatorFixture f(kBounded);
  f.StartJob();
  const auto revision = f.Heartbeat(f.members[0])->reply().revision();
  const auto parked = f.Heartbeat(f.members[0], revision);
  CHECK_FALSE(parked->there());
  const auto next = f.Heartbeat(f.members[0], revision);
  CHECK(parked->there());
  CHECK_FALSE(next->there());
  f.Run(absl::Seconds(4));
  CHECK(next->there());
  CHECK(next->reply().revision() == revision);
  const auto last = f.Heartbeat(f.members[0], revision);
  f.Leave(f.members[1], false, "crashed");
  CHECK(last->reply().revision() > revision);
  CHECK(last->reply().membership().members_size() == 1);
}

TEST_CASE("Who asks for news alone hears of the membership only when there is some") {
  CoordinatorFixture f(kBounded);
  f.StartJob();
  const auto first = f.Heartbeat(f.members[0], 0, /*only_news=*/true);
  REQUIRE(first->there());
  CHECK(first->reply().membership().members_size() == 2);
  const uint64_t revision = first->reply().revision();
  const auto parked = f.Heartbeat(f.members[0], revision, /*only_news=*/true);
  f.Run(absl::Seconds(4));
  REQUIRE(parked->there());
  CHECK(parked->reply().revision() == revision);
  CHECK(parked->reply().state() == v1::RUNNING);
  CHECK_FALSE(parked->reply().has_membership());
  const auto all = f.Heartbeat(f.members[0], revision);
  const auto next = f.Heartbeat(f.members[0], revision, /*only_news=*/true);
  CHECK(all->reply().membership().members_size() == 2);
  f.Leave(f.members[1], false, "crashed");
  CHECK(next->reply().membership().members_size() == 1);
}

TEST_CASE("Leaving is idempotent, and of one incarnation only") {
  CoordinatorFixture f(kBounded);
  f.StartJob();
  f.Leave(f.members[1]);
  const uint64_t epoch = f.Status().membership().epoch();
  f.Leave(f.members[1]);
  CHECK(f.Status().membership().epoch() == epoch);
  CHECK(f.Task("worker:1").state() == "left");
  const auto again = f.Join(1, 7777);
  f.Leave(f.members[1]);
  CHECK(f.Status().membership().members_size() == 2);
  CHECK(f.Task("worker:1").state() == "live");
}

TEST_CASE("A worker that dies while it joins holds nobody up") {
  CoordinatorFixture f(kBounded, 3);
  f.config.mutable_cluster()->set_min_workers(2);
  f.Start();
  f.members = {};
  const auto a = f.Join(0), b = f.Join(1);
  f.shards[0]->acknowledges = false;
  const auto joiner = f.Join(2);
  CHECK_FALSE(joiner->there());
  const auto other = f.Join(2, 7777);  // worker 2's next incarnation waits
  f.Run(absl::Seconds(11), {a->reply(), b->reply()});
  CHECK_FALSE(joiner->status().ok());
  CHECK(joiner->times == 1);
  f.shards[0]->acknowledges = true;
  f.shards[0]->Acknowledge(f.shards[0]->Membership().epoch());
  CHECK(other->reply().worker() == 2);
  CHECK(f.Status().membership().members_size() == 3);
}

TEST_CASE("A job whose workers were all lost waits for one, and fails in the end") {
  CoordinatorFixture f(kSync, 1);
  f.StartJob();
  f.Run(absl::Seconds(11));
  CHECK(f.Status().membership().members_size() == 0);
  f.Run(absl::Seconds(55));
  CHECK(f.ends == 0);
  const auto back = f.Join(0, 7777);
  CHECK(back->there());
  f.Run(absl::Seconds(11));
  CHECK(f.Status().membership().members_size() == 0);
  f.Run(absl::Seconds(62));
  CHECK(f.ends == 1);
  CHECK_THAT(f.failure, Contains("no worker"));
}

TEST_CASE("A coordinator that was stopped for long ends no lease before its peers can report") {
  CoordinatorFixture f(kBounded);
  f.StartJob();
  const auto reader = f.JoinReader();
  f.clock.Advance(absl::Minutes(5));
  f.coordinator->Tick();
  CHECK(f.failure == "");
  CHECK(f.Status().membership().members_size() == 2);
  f.Run(absl::Seconds(9), {f.members[0]});
  CHECK(f.Status().membership().members_size() == 2);
  CHECK(f.Task("evaluator:0").state() == "live");
  f.Run(absl::Seconds(2), {f.members[0]});
  CHECK(f.Status().membership().members_size() == 1);
  CHECK(f.Task("evaluator:0").state() == "");
}

TEST_CASE("A silent reader's lease ends, too") {
  CoordinatorFixture f(kSync);
  f.StartJob();
  const auto reader = f.JoinReader();
  CHECK(f.Task("evaluator:0").state() == "live");
  f.Run(absl::Seconds(11), f.members);
  CHECK(f.Task("evaluator:0").state() == "");
  CHECK(f.Heartbeat(reader->reply())->reply().fenced());
  CHECK(f.Status().membership().members_size() == 2);
}

}  // namespace
}  // namespace weir
