// Servers that come back at a new address: which server ps:0 accepts, and which members learn of it.
#include <string>
#include <vector>

#include "catch2/catch.hpp"
#include "tests/ps_server/coordinator/coordinator_fixture.h"

namespace weir {
namespace {

using Catch::Contains;
using Code = absl::StatusCode;
constexpr auto kSync = v1::ConsistencyConfig::MODE_SYNC;
constexpr auto kAsync = v1::ConsistencyConfig::MODE_ASYNC;

const std::string kOld = "10.0.0.1:2222", kNew = "10.0.0.7:3333";

struct Moves : CoordinatorFixture {
  explicit Moves(v1::ConsistencyConfig::Mode mode = kAsync) : CoordinatorFixture(mode) {
    train_examples = 8 * 2 * 20;
    disk = std::make_shared<FakeDisk>();
    shards[1]->instance = 11;
  }
  // Kills the process, and starts no other at its address.
  void KillForGood(uint32_t shard) {
    shards[shard]->connects = false;
    shards[shard]->Kill();
  }
  // The address in the member's heartbeat reply; "": the server has not moved.
  std::string Told(const v1::JoinReply& member) {
    const v1::HeartbeatReply beat = Heartbeat(member)->reply();
    return beat.moved().count(1) > 0 ? beat.moved().at(1) : "";
  }
  // All members confirm the newest revision.
  void TellMembers() {
    for (const v1::JoinReply& member : members) Heartbeat(member, Heartbeat(member)->reply().revision());
  }
};

size_t Installs(const FakeShard& shard) { return shard.Sent(v1::ControlMessage::kInstall).size(); }

TEST_CASE("async: a server comes back elsewhere, members are told, and then it is restored there") {
  Moves f;
  f.StartJob();
  f.Checkpoint()->reply();
  const uint64_t revision = f.Heartbeat(f.members[0])->reply().revision();
  const auto parked = f.Heartbeat(f.members[0], revision);
  CHECK(f.members[0].moved().empty());
  f.KillForGood(1);
  f.Run(absl::Seconds(2), {f.members[1]});
  FakeShard& moved = f.StartElsewhere(1, kNew, 12);
  CHECK(f.Announce(1, kNew, 12)->status().ok());
  CHECK(moved.open);
  REQUIRE(parked->there());

  // A member that does not know the new address may still get answers from a process that only seems to be
  // dead.
  CHECK(f.Told(f.members[0]) == kNew);
  f.Run(absl::Seconds(1), f.members);
  CHECK(Installs(moved) == 0);
  CHECK(f.Task("ps:1").state() == "live");
  CHECK(f.Task("ps:1").address() == kNew);
  f.Heartbeat(f.members[0], f.Heartbeat(f.members[0])->reply().revision());
  f.Run(absl::Milliseconds(250));
  CHECK(Installs(moved) == 0);
  f.TellMembers();
  f.Run(absl::Milliseconds(250));
  REQUIRE(Installs(moved) == 1);
  CHECK(moved.LastInstall().restore().step() == 0);
  CHECK(moved.Membership().members_size() == 2);
  CHECK(f.Status().recoveries() == 1);

  // Members that join later learn it, too.
  const auto reader = f.JoinReader();
  CHECK(reader->reply().moved().at(1) == kNew);
  CHECK(reader->reply().ps_addresses(1) == kNew);
  CHECK(f.Heartbeat(reader->reply())->reply().moved().at(1) == kNew);
}

TEST_CASE("async: a server that dies as it saves the end is restored elsewhere, and the job ends") {
  Moves f;
  f.train_examples = 8 * 2;
  f.StartJob();
  const auto a = f.NextRange(f.members[0]), b = f.NextRange(f.members[1]);
  f.shards[1]->writes = false;
  f.NextRange(f.members[0], {a->reply().range().id()});
  f.NextRange(f.members[1], {b->reply().range().id()});
  REQUIRE(f.Status().state() == v1::DRAINING);
  f.KillForGood(1);
  FakeShard& moved = f.StartElsewhere(1, kNew, 12);
  f.Announce(1, kNew, 12)->reply();
  // If a worker has not heard of the new address, the install waits until the worker hears of it or leaves.
  const auto first = f.StartLeave(f.members[0]);
  auto second = first;
  SECTION("the other member leaves") { second = f.StartLeave(f.members[1]); }
  SECTION("the other member hears of it") {
    CHECK(Installs(moved) == 0);
    f.Heartbeat(f.members[1], f.Heartbeat(f.members[1])->reply().revision());
    f.Run(absl::Seconds(2), {f.members[1]});
    second = f.StartLeave(f.members[1]);
  }
  f.Run(absl::Seconds(2));
  CHECK(Installs(moved) == 1);
  CHECK(first->there());
  CHECK(second->there());
  CHECK(f.ends == 1);
  CHECK(f.failure == "");
}

TEST_CASE("async: a member that is gone holds nobody up") {
  Moves f;
  f.StartJob();
  f.KillForGood(1);
  FakeShard& moved = f.StartElsewhere(1, kNew, 12);
  f.Announce(1, kNew, 12)->reply();
  f.Heartbeat(f.members[0], f.Heartbeat(f.members[0])->reply().revision());
  f.Run(absl::Seconds(9));
  CHECK(Installs(moved) == 0);
  f.Heartbeat(f.members[0], f.Heartbeat(f.members[0])->reply().revision());
  f.Run(absl::Seconds(2));
  CHECK(Installs(moved) == 1);
  CHECK(f.failure == "");
}

TEST_CASE("sync: everybody goes back and joins where the server is now") {
  Moves f(kSync);
  f.StartJob();
  f.Steps(3);
  f.Checkpoint()->reply();
  f.KillForGood(1);
  FakeShard& moved = f.StartElsewhere(1, kNew, 12);
  f.Announce(1, kNew, 12)->reply();
  const auto first = f.Join(0, 2000), second = f.Join(1, 2001);
  CHECK(moved.LastInstall().restore().step() == 3);
  for (const auto& join : {first, second}) {
    CHECK(join->reply().moved().size() == 1);
    CHECK(join->reply().moved().at(1) == kNew);
  }
  CHECK(f.Status().step() == 3);
}

TEST_CASE("Another process cannot take the place of one that is alive") {
  const auto mode = GENERATE(kAsync, kSync);
  Moves f(mode);
  f.StartJob();
  const uint64_t revision = f.Heartbeat(f.members[0])->reply().revision();
  f.shards[1]->answers_pings = false;
  f.StartElsewhere(1, kNew, 12);
  const auto announce = f.Announce(1, kNew, 12);
  f.Run(absl::Seconds(1), f.members);
  CHECK_FALSE(announce->there());

  SECTION("it answers") {
    f.shards[1]->answers_pings = true;
    f.Run(absl::Seconds(1), f.members);
    CHECK(announce->status().code() == Code::kAlreadyExists);
    CHECK_THAT(std::string(announce->status().message()),
               Contains("ps:1 at " + kOld + " is alive") && Contains(kNew));
    CHECK(f.Status().recoveries() == 0);
    CHECK(f.Status().state() == v1::RUNNING);
    CHECK(f.Heartbeat(f.members[0])->reply().revision() == revision);
    CHECK(f.Told(f.members[0]) == "");
    CHECK_FALSE(f.elsewhere[kNew]->open);
    CHECK(f.shards[1]->open);
  }
  SECTION("it is silent for a lease") {
    f.Run(absl::Seconds(10), f.members);
    CHECK(announce->status().ok());
    CHECK_FALSE(f.shards[1]->open);
    CHECK(f.elsewhere[kNew]->open);
    if (mode == kAsync) f.TellMembers();
    if (mode == kSync) f.Join(0, 2000), f.Join(1, 2001);
    f.Run(absl::Seconds(1));
    CHECK(Installs(*f.elsewhere[kNew]) == 1);
    // The old process continues.
    const auto late = f.Announce(1, kOld, 11);
    f.Run(absl::Seconds(1));
    CHECK(late->status().code() == Code::kAlreadyExists);
  }
  SECTION("it dies") {
    f.shards[1]->Kill();
    f.Run(absl::Milliseconds(250));
    CHECK(announce->status().ok());
    CHECK(f.elsewhere[kNew]->open);
  }
  SECTION("the job fails meanwhile") {
    f.coordinator->Fail("enough");
    CHECK(announce->status().code() == Code::kUnavailable);
  }
}

TEST_CASE("The process that is attached may call itself what it likes") {
  Moves f;
  f.StartJob();
  CHECK(f.Announce(1, "localhost:2222", 11)->status().ok());
  f.Run(absl::Seconds(3), f.members);
  CHECK(f.shards[1]->open);
  CHECK(f.Task("ps:1").address() == kOld);
  CHECK(f.Told(f.members[0]) == "");
}

TEST_CASE("A name that only the server itself has for it does no harm") {
  Moves f;
  f.shards[1]->connects = false;
  f.StartElsewhere(1, kNew, 77).connects = false;
  f.Start();
  f.Announce(1, kNew, 11)->reply();
  CHECK_FALSE(f.shards[1]->open);
  SECTION("nobody is there") {}
  SECTION("what is there takes no coordinator") {
    f.elsewhere[kNew]->events.ended(absl::UnimplementedError("not a shard"));
    CHECK(f.shards[1]->open);
  }
  SECTION("what is there is another server") { f.elsewhere[kNew]->events.connected(); }
  f.shards[1]->connects = true;
  f.Run(absl::Seconds(2));
  f.Announce(1, kNew, 11)->reply();
  const auto first = f.Join(0), second = f.Join(1);
  f.Run(absl::Seconds(2));
  CHECK(Installs(*f.shards[1]) == 1);
  CHECK(Installs(*f.elsewhere[kNew]) == 0);
  CHECK(first->reply().moved().empty());
  CHECK(f.failure == "");
}

TEST_CASE("A server is looked for at both of its addresses, and announced ones follow each other") {
  Moves f;
  f.config.mutable_cluster()->set_server_wait_seconds(100);
  f.StartJob();
  f.KillForGood(1);
  FakeShard& moved = f.StartElsewhere(1, kNew, 12);
  moved.connects = false;
  f.Announce(1, kNew, 12)->reply();
  CHECK(f.Task("ps:1").address() == kNew);
  f.Run(absl::Milliseconds(1500), f.members);
  CHECK(f.Task("ps:1").address() == kOld);
  f.Run(absl::Milliseconds(1500), f.members);
  CHECK(f.Task("ps:1").address() == kNew);

  SECTION("it is there at last") {
    moved.events.connected();
    f.TellMembers();
    f.Run(absl::Milliseconds(250));
    CHECK(Installs(moved) == 1);
  }
  SECTION("it comes at a third") {
    FakeShard& third = f.StartElsewhere(1, "10.0.0.8:4444", 13);
    f.Announce(1, "10.0.0.8:4444", 13)->reply();
    f.TellMembers();
    f.Run(absl::Milliseconds(250));
    CHECK(Installs(third) == 1);
    CHECK(f.Told(f.members[0]) == "10.0.0.8:4444");
  }
  SECTION("it is back where it was") {
    moved.events.connected();
    f.TellMembers();
    f.Run(absl::Milliseconds(250));
    REQUIRE(f.Told(f.members[0]) == kNew);
    const uint64_t revision = f.Heartbeat(f.members[0])->reply().revision();
    moved.connects = false;
    moved.Kill();
    f.shards[1]->connects = true;
    f.shards[1]->instance = 14;
    f.Announce(1, kOld, 14)->reply();
    CHECK(f.Heartbeat(f.members[0], revision)->reply().moved().empty());
    f.TellMembers();
    f.Run(absl::Milliseconds(250));
    CHECK(f.Status().recoveries() == 2);
    CHECK(f.Task("ps:1").address() == kOld);
  }
}

TEST_CASE("A coordinator that is started again learns of it from the server, whichever of them came first") {
  Moves f;
  f.StartJob();
  f.Checkpoint()->reply();
  f.KillForGood(1);
  FakeShard& moved = f.StartElsewhere(1, kNew, 12);
  SECTION("the server had been found before") {
    f.Announce(1, kNew, 12)->reply();
    f.TellMembers();
    f.Run(absl::Milliseconds(250));
    REQUIRE(Installs(moved) == 1);
    moved.dead_link = true;
    f.Restart();
    moved.dead_link = false;
  }
  SECTION("ps:0 is first") { f.Restart(); }
  f.Run(absl::Seconds(2));
  CHECK_FALSE(moved.open);
  f.Announce(1, kNew, 12)->reply();
  CHECK(moved.open);
  const auto first = f.Join(0, 2000);
  f.Run(absl::Seconds(1));
  CHECK(Installs(moved) == 1);  // or the shard continues with what it holds
  CHECK(first->reply().moved().at(1) == kNew);
  CHECK(f.Status().state() == v1::RUNNING);
}

TEST_CASE("A job without checkpoints may begin with a server that is elsewhere") {
  CoordinatorFixture f(kAsync);
  f.shards[1]->connects = false;
  f.Start();
  FakeShard& moved = f.StartElsewhere(1, kNew, 12);
  f.Announce(1, kNew, 12)->reply();
  const auto first = f.Join(0), second = f.Join(1);
  CHECK(Installs(moved) == 1);
  CHECK(first->reply().moved().at(1) == kNew);
}

TEST_CASE("Announcements that cannot be") {
  Moves f;
  f.Start();
  const auto refused = [&](uint32_t shard, const std::string& address, Code code, const std::string& what) {
    INFO(shard << " at " << address);
    const auto announce = f.Announce(shard, address, 12);
    CHECK(announce->status().code() == code);
    CHECK_THAT(std::string(announce->status().message()), Contains(what));
  };
  refused(0, kNew, Code::kFailedPrecondition, "announces itself as ps:0");
  refused(2, kNew, Code::kFailedPrecondition, "the job has ps:0 to ps:1");
  refused(1, "nowhere", Code::kInvalidArgument, "address: ps:1 cannot be reached at 'nowhere'");
  refused(1, "10.0.0.7:0", Code::kInvalidArgument, "cannot be reached at '10.0.0.7:0'");
  f.coordinator->Fail("enough");
  refused(1, kNew, Code::kUnavailable, "enough");
}

TEST_CASE("Before the first worker has told of the servers an announcement is heard, and has to come again") {
  Moves f;
  f.known_addresses = {f.addresses[0]};
  f.Start();
  CHECK(f.Announce(1, kNew, 12)->status().ok());
  f.shards[1]->connects = false;
  const auto first = f.Join(0), second = f.Join(1);
  f.StartElsewhere(1, kNew, 12);
  f.Announce(1, kNew, 12)->reply();
  CHECK(first->reply().moved().at(1) == kNew);
}

}  // namespace
}  // namespace weir
