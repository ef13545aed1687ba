// sync: a lost server takes all tasks back to the newest checkpoint.
#include <string>
#include <vector>

#include "catch2/catch.hpp"
#include "tests/ps_server/coordinator/coordinator_fixture.h"

namespace weir {
namespace {

using Catch::Contains;
constexpr auto kSync = v1::ConsistencyConfig::MODE_SYNC;

struct RecoveryFixture : CoordinatorFixture {
  explicit RecoveryFixture(uint32_t workers = 2, uint32_t shards = 2)
      : CoordinatorFixture(kSync, workers, shards) {
    train_examples = 8 * 2 * 20;  // 20 steps
    disk = std::make_shared<FakeDisk>();
  }
  // The workers' next incarnations join.
  std::vector<AnswerPtr<v1::JoinReply>> JoinAgain() {
    ++incarnation;
    std::vector<AnswerPtr<v1::JoinReply>> joins;
    for (uint32_t rank = 0; rank < workers; ++rank) joins.push_back(Join(rank, 1000 * incarnation + rank));
    return joins;
  }
  uint64_t incarnation = 1;
};

TEST_CASE(
    "A lost server: all are fenced, all shards are installed from the newest checkpoint, and it goes on") {
  RecoveryFixture f;
  f.StartJob();
  f.Steps(3);
  CHECK(f.Checkpoint()->reply().step() == 3);
  f.Steps(2);
  CHECK(f.Status().step() == 5);
  const uint64_t epoch = f.Status().membership().epoch();
  const auto parked = f.Heartbeat(f.members[0], f.Heartbeat(f.members[0])->reply().revision());
  f.shards[1]->Kill();

  CHECK(f.ends == 0);
  CHECK(f.Status().state() == v1::RECOVERING);
  CHECK(f.Status().step() == 3);
  REQUIRE(parked->there());
  CHECK(parked->reply().fenced());
  CHECK_THAT(parked->reply().failure(), Contains("goes back to step 3") && Contains("ps:1 at 10.0.0.1:2222"));
  CHECK_THAT(f.Heartbeat(f.members[1])->reply().failure(), Contains("goes back to step 3"));
  // The remaining shards accept nothing from the fenced workers.
  CHECK(f.shards[0]->Membership().members_size() == 0);
  CHECK(f.shards[0]->Membership().epoch() > epoch);
  CHECK_THAT(f.Status().waiting_for(0), Contains("ps:1 at 10.0.0.1:2222 to come back"));

  f.Run(absl::Seconds(1));  // the shard is attached again
  CHECK(f.Status().waiting_for(0) == "ps:1 at 10.0.0.1:2222 to go on (it was lost: its stream ended)");
  CHECK(f.shards[0]->Sent(v1::ControlMessage::kInstall).size() == 1);
  const auto joins = f.JoinAgain();
  for (const auto& shard : f.shards) {
    REQUIRE(shard->Sent(v1::ControlMessage::kInstall).size() == 2);
    CHECK(shard->LastInstall().restore().step() == 3);
    CHECK_FALSE(shard->LastInstall().restore().weights_only());
    CHECK(shard->Membership().members_size() == 2);
  }
  CHECK(f.Status().state() == v1::RUNNING);
  CHECK(f.Status().recoveries() == 1);
  CHECK(f.Status().step() == 3);
  for (const auto& join : joins) {
    for (const auto& member : f.members) CHECK(join->reply().incarnation() > member.incarnation());
  }
  f.open_step = 3;
  f.Steps(1);
  CHECK(f.shards[1]->Sent(v1::ControlMessage::kCommit).back().commit().step() == 3);
  CHECK(f.Status().step() == 4);
}

TEST_CASE("A checkpoint that becomes complete while the job goes back is where it goes on") {
  RecoveryFixture f;
  f.StartJob();
  f.Steps(2);
  f.Checkpoint()->reply();
  f.Steps(2);
  f.disk->holds = true;
  const auto checkpoint = f.Checkpoint();
  f.disk->Answer();  // the checkpoint has begun, and the shards have written
  f.shards[1]->Kill();
  f.Run(absl::Seconds(1));
  CHECK(f.Status().step() == 2);
  f.JoinAgain();
  CHECK(f.shards[0]->Sent(v1::ControlMessage::kInstall).size() == 1);  // not before that fate is known
  f.disk->holds = false;
  f.disk->Answer();  // the manifest
  for (const auto& shard : f.shards) {
    CHECK(shard->LastInstall().restore().step() == 4);
  }
  CHECK(f.Status().state() == v1::RUNNING);
  CHECK(f.Status().step() == 4);
  f.open_step = 4;
  f.Steps(1);
  CHECK(f.Status().step() == 5);
}

TEST_CASE("Without a checkpoint the job goes back to its beginning, with the weights that it began with") {
  RecoveryFixture f;
  f.init_from = 7;
  f.StartJob();
  CHECK(f.shards[0]->LastInstall().restore().step() == 7);
  CHECK(f.shards[0]->LastInstall().restore().init_from());
  CHECK(f.shards[0]->LastInstall().restore().weights_only());
  f.Steps(2);
  f.shards[1]->Break();  // the process is the same, but messages may be lost
  CHECK(f.Status().state() == v1::RECOVERING);
  f.Run(absl::Seconds(1));
  f.JoinAgain();
  for (const auto& shard : f.shards) {
    CHECK(shard->Sent(v1::ControlMessage::kInstall).size() == 2);
    CHECK(shard->LastInstall().restore().weights_only());
  }
  CHECK(f.Status().state() == v1::RUNNING);
  CHECK(f.Status().step() == 0);
}

TEST_CASE("One worker is enough to go on") {
  RecoveryFixture f;
  f.StartJob();
  f.shards[1]->Kill();
  f.Run(absl::Seconds(1));
  CHECK(f.Join(1, 7001)->reply().membership().members_size() == 1);
  CHECK(f.Join(0, 7000)->reply().membership().members_size() == 2);
  CHECK(f.Status().state() == v1::RUNNING);
}

TEST_CASE("A server that is lost again while it is restored is waited for anew") {
  RecoveryFixture f;
  f.StartJob();
  f.shards[1]->installs = false;
  f.shards[1]->Kill();
  f.Run(absl::Seconds(1));
  f.JoinAgain();
  f.Run(absl::Seconds(5));  // the shard loads
  f.shards[1]->Kill();
  f.Run(absl::Seconds(1));
  CHECK(f.ends == 0);
  f.shards[1]->installs = true;
  f.JoinAgain();
  f.shards[1]->Installed();
  CHECK(f.Status().state() == v1::RUNNING);
}

TEST_CASE("A server that does not come back in time ends the job, by name, and with why it was lost") {
  RecoveryFixture f;
  f.StartJob();
  f.shards[1]->connects = false;
  f.shards[1]->Kill("connection reset");
  f.Run(absl::Seconds(4.5));
  CHECK(f.ends == 0);
  f.Run(absl::Seconds(1));
  CHECK(f.ends == 1);
  CHECK_THAT(f.failure, Contains("ps:1 at 10.0.0.1:2222 was lost: connection reset") &&
                            Contains("cluster.server_wait_seconds = 5"));
}

TEST_CASE("A server that is silent for a lease is attached anew") {
  RecoveryFixture f;
  f.StartJob();
  f.Steps(1);
  f.shards[1]->answers_pings = f.shards[1]->connects = false;
  f.Run(absl::Seconds(12), f.members);
  CHECK(f.Status().state() == v1::RECOVERING);
  CHECK(f.shards[1]->open);  // a new link exists, and is not yet connected
  f.shards[1]->answers_pings = true;
  f.shards[1]->events.connected();
  f.JoinAgain();
  CHECK(f.Status().state() == v1::RUNNING);
}

TEST_CASE("Servers that die again while the job recovers: it starts the same again") {
  RecoveryFixture f(2, 3);
  f.StartJob();
  f.Steps(2);
  f.Checkpoint()->reply();
  f.Steps(2);
  f.shards[1]->Kill();

  SECTION("before it is attached, and another one with it") {
    f.shards[2]->Kill();
    f.Run(absl::Seconds(1));
    f.JoinAgain();
    CHECK(f.Status().recoveries() == 2);
  }
  SECTION("while shards install") {
    for (auto& shard : f.shards) shard->installs = false;
    f.Run(absl::Seconds(1));
    f.JoinAgain();
    CHECK(f.shards[1]->Sent(v1::ControlMessage::kInstall).size() == 2);
    f.shards[0]->Installed();
    f.shards[1]->Installed();
    f.shards[2]->Kill();
    f.Run(absl::Seconds(1));
    for (auto& shard : f.shards) {
      CHECK(shard->Sent(v1::ControlMessage::kInstall).size() == 3);
      CHECK(f.Status().state() == v1::RECOVERING);
      shard->installs = true;
      shard->Installed();
    }
  }
  SECTION("while members are admitted: they wait on, and are asked nothing twice") {
    for (auto& shard : f.shards) shard->acknowledges = false;
    f.Run(absl::Seconds(1));
    const auto joins = f.JoinAgain();
    CHECK(f.shards[0]->Membership().members_size() == 1);
    f.shards[2]->Kill();
    CHECK(f.shards[0]->Membership().members_size() == 0);
    for (const auto& join : joins) CHECK_FALSE(join->there());
    for (auto& shard : f.shards) shard->acknowledges = true;
    f.Run(absl::Seconds(1));
    for (const auto& join : joins) CHECK(join->reply().membership().members_size() == 2);
  }
  SECTION("when all is well again") {
    f.Run(absl::Seconds(1));
    f.JoinAgain();
    CHECK(f.Status().state() == v1::RUNNING);
    f.shards[1]->Kill();
    f.Run(absl::Seconds(1));
    f.JoinAgain();
    CHECK(f.Status().recoveries() == 2);
  }
  CHECK(f.Status().state() == v1::RUNNING);
  CHECK(f.Status().step() == 2);
  for (const auto& shard : f.shards) CHECK(shard->LastInstall().restore().step() == 2);
  f.open_step = 2;
  f.Steps(1);
  CHECK(f.Status().step() == 3);
}

TEST_CASE("What a shard reports of what it held before does not count") {
  RecoveryFixture f;
  f.StartJob();
  for (auto& shard : f.shards) shard->installs = false;
  f.shards[1]->Kill();
  f.Run(absl::Seconds(1));
  f.shards[0]->Staged(0);
  f.JoinAgain();
  f.shards[0]->Staged(0);  // the Install is on its way
  for (auto& shard : f.shards) shard->Installed();
  CHECK(f.Status().state() == v1::RUNNING);
  f.shards[1]->Staged(0);
  CHECK(f.shards[0]->Sent(v1::ControlMessage::kCommit).empty());
  f.shards[0]->Staged(0);
  CHECK(f.shards[0]->Sent(v1::ControlMessage::kCommit).size() == 1);
}

TEST_CASE("An old link's last words do not count against the new one") {
  RecoveryFixture f;
  f.StartJob();
  ShardLinkEvents old = f.shards[1]->events;
  f.shards[1]->Kill();
  f.Run(absl::Seconds(1));
  f.JoinAgain();
  old.ended(absl::UnavailableError("at last"));
  CHECK(f.Status().state() == v1::RUNNING);
}

TEST_CASE("Waiting for nobody but workers has its deadline, too") {
  RecoveryFixture f;
  f.StartJob();
  f.shards[1]->Kill();
  f.Run(absl::Seconds(1));
  CHECK(f.Status().waiting_for(1) == "a worker to join again");
  f.Run(absl::Seconds(55));
  CHECK(f.ends == 0);
  f.Run(absl::Seconds(10));
  CHECK_THAT(f.failure, Contains("no worker was live"));
}

TEST_CASE("A server that another coordinator has, or whose part of the checkpoint is damaged, ends the job") {
  RecoveryFixture f;
  f.StartJob();
  f.shards[1]->events.ended(absl::FailedPreconditionError("a newer coordinator has this shard"));
  CHECK_THAT(f.failure, Contains("ps:1 at 10.0.0.1:2222") && Contains("newer coordinator"));

  RecoveryFixture g;
  g.StartJob();
  g.shards[1]->install_error = "/runs/7/step-3: is damaged";
  g.shards[1]->Kill();
  g.Run(absl::Seconds(1));
  g.JoinAgain();
  CHECK_THAT(g.failure, Contains("ps:1 at 10.0.0.1:2222") && Contains("is damaged"));
}

// A job with checkpoints of steps 3 and 5. The shards call the newer one damaged.
struct Damaged : RecoveryFixture {
  Damaged() {
    StartJob();
    Steps(3);
    Checkpoint()->reply();
    disk->before = *disk->newest;
    Steps(2);
    Checkpoint()->reply();
    for (const auto& shard : shards) shard->finds_damaged = 5;
  }
  // ps:1 and all workers come back.
  std::vector<AnswerPtr<v1::JoinReply>> GoOn() {
    shards[1]->Kill();
    Run(absl::Seconds(1));
    return JoinAgain();
  }
};

TEST_CASE("A newest checkpoint that is damaged is passed over: all shards load the one before") {
  Damaged f;
  const bool one = GENERATE(false, true);  // the part of one shard is damaged, or every part
  if (one) f.shards[0]->finds_damaged.reset();
  f.disk->holds = true;
  const auto joins = f.GoOn();
  for (const auto& shard : f.shards) CHECK(shard->LastInstall().restore().step() == 5);
  CHECK(f.Status().state() == v1::RECOVERING);
  CHECK_THAT(f.Status().waiting_for(f.Status().waiting_for_size() - 1),
             Contains("ps:0 to find a whole checkpoint before /runs/7/step-5"));
  f.Run(absl::Seconds(1));
  f.disk->holds = false;
  f.disk->Answer();
  CHECK(f.disk->passed_over == std::vector<uint64_t>{5});
  for (const auto& shard : f.shards) {
    CHECK(shard->Sent(v1::ControlMessage::kInstall).size() == 3);
    CHECK(shard->LastInstall().restore().step() == 3);
  }
  CHECK(f.Status().state() == v1::RUNNING);
  CHECK(f.Status().step() == 3);
  CHECK(f.Status().checkpoint() == "/runs/7/step-3");
  for (const auto& join : joins) CHECK(join->there());
  f.open_step = 3;
  f.Steps(3);
  CHECK(f.Checkpoint()->reply().step() == 6);
  CHECK(f.ends == 0);
}

TEST_CASE("A shard that still loads the damaged checkpoint answers before it is told to load another one") {
  Damaged f;
  f.shards[0]->installs = false;
  f.GoOn();
  CHECK(f.disk->passed_over == std::vector<uint64_t>{5});
  f.Run(absl::Seconds(1));
  for (const auto& shard : f.shards) CHECK(shard->LastInstall().restore().step() == 5);
  f.shards[0]->installs = true;
  f.shards[0]->finds_damaged.reset();  // its own part is whole
  f.shards[0]->Installed();
  for (const auto& shard : f.shards) CHECK(shard->LastInstall().restore().step() == 3);
  CHECK(f.Status().step() == 3);
  CHECK(f.Status().state() == v1::RUNNING);
}

TEST_CASE("A job whose newest checkpoint is damaged starts from the one before") {
  Damaged f;
  f.Restart();
  f.Run(absl::Seconds(1));
  f.JoinAgain();
  f.Run(absl::Seconds(1));
  for (const auto& shard : f.shards) CHECK(shard->LastInstall().restore().step() == 3);
  CHECK(f.Status().state() == v1::RUNNING);
  CHECK(f.Status().step() == 3);
}

TEST_CASE("Where no checkpoint is whole, the job ends for good, and says what was seen") {
  Damaged f;
  f.disk->before = absl::DataLossError("/runs/7/step-3: is damaged, too");
  f.GoOn();
  CHECK(f.ends == 1);
  CHECK(f.failure_kind == v1::FAILURE_CONFIG);
  CHECK_THAT(f.failure, Contains("no whole checkpoint is there to go on from: ps:") &&
                            Contains("a tensor is damaged") && Contains("/runs/7/step-3: is damaged, too"));
}

TEST_CASE(
    "A store that cannot be read now ends the job for another try; one that was taken ends it for good") {
  Damaged f;
  f.disk->before = absl::UnavailableError("no answer from the store");
  f.GoOn();
  CHECK(f.failure_kind == v1::FAILURE_LOST_PEER);
  Damaged g;
  g.disk->before = absl::AbortedError("/runs/7 belongs to another ps:0 now");
  g.GoOn();
  CHECK(g.failure_kind == v1::FAILURE_FENCED);
}

TEST_CASE("A checkpoint that ps:0 finds whole is loaded once more before the job ends for that server") {
  Damaged f;
  f.disk->before = absl::FailedPreconditionError("ps:0 has read /runs/7/step-5, and it is whole");
  f.shards[0]->finds_damaged.reset();
  f.GoOn();
  CHECK(f.disk->passed_over == std::vector<uint64_t>{5, 5});
  CHECK(f.failure_kind == v1::FAILURE_CONFIG);
  CHECK_THAT(f.failure, Contains("ps:1 at 10.0.0.1:2222: a tensor is damaged; but ps:0 has read") &&
                            Contains("sees other files than ps:0"));
}

TEST_CASE("Weights to begin with that are damaged end the job, unless an older checkpoint there is whole") {
  RecoveryFixture f;
  f.init_from = 7;
  for (const auto& shard : f.shards) shard->finds_damaged = 7;
  SECTION("none") {
    f.Start();
    for (uint32_t rank = 0; rank < 2; ++rank) f.Join(rank);
    CHECK(f.failure_kind == v1::FAILURE_CONFIG);
    CHECK_THAT(f.failure, Contains("a tensor is damaged"));
  }
  SECTION("one") {
    f.init_from_before = 4;
    f.StartJob();
    for (const auto& shard : f.shards) {
      CHECK(shard->LastInstall().restore().init_from());
      CHECK(shard->LastInstall().restore().step() == 4);
    }
    CHECK(f.Status().state() == v1::RUNNING);
  }
}

TEST_CASE("A server that is lost before the job has started is waited for, and is given its part anew") {
  RecoveryFixture f;
  f.Start();
  f.Join(0);
  f.shards[1]->acknowledges = false;
  const auto join = f.Join(1);
  f.shards[1]->Kill();
  CHECK(f.Status().state() == v1::STARTING);
  CHECK(f.Status().waiting_for(0) == "ps:1 at 10.0.0.1:2222 (its stream ended)");
  f.shards[1]->acknowledges = true;
  f.Run(absl::Seconds(1));
  CHECK(join->there());
  CHECK(f.shards[0]->Sent(v1::ControlMessage::kInstall).size() == 1);
  CHECK(f.shards[1]->Sent(v1::ControlMessage::kInstall).size() == 2);
  CHECK(f.Status().state() == v1::RUNNING);
}

TEST_CASE("The end is saved before anybody may go home; a server that is lost until then brings all back") {
  RecoveryFixture f;
  f.StartJob();
  f.Steps(10);
  f.Checkpoint()->reply();
  f.shards[1]->writes = false;
  f.Steps(10);
  CHECK(f.Status().state() == v1::DRAINING);
  const auto leave = f.StartLeave(f.members[0]);
  const auto late = f.Join(1, 5555);  // would hear that no work is left
  CHECK_FALSE(leave->there());
  CHECK_FALSE(late->there());

  SECTION("saved") {
    f.shards[1]->Written(20);
    CHECK(leave->status().ok());
    CHECK(late->status().code() == absl::StatusCode::kOutOfRange);
    CHECK(f.ends == 0);
    f.Leave(f.members[1]);
    CHECK(f.ends == 1);
    CHECK(f.failure == "");
    CHECK(f.final_status.checkpoint() == "/runs/7/step-20");
  }
  SECTION("saved, and all have gone but one who was lost and may come back") {
    f.coordinator->OnDisconnect(f.CallerOf(f.members[1]));
    f.Run(absl::Seconds(3.5), {f.members[0]});
    f.shards[1]->Written(20);
    CHECK(leave->status().ok());
    f.shards[1]->Kill();
    CHECK(f.ends == 1);
    CHECK(f.failure == "");
  }
  SECTION("lost") {
    f.shards[1]->Kill();
    CHECK(leave->status().code() == absl::StatusCode::kAborted);
    CHECK_FALSE(late->there());
    // A repeat of the Leave gets the same answer.
    CHECK(f.StartLeave(f.members[0])->status().code() == absl::StatusCode::kAborted);
    f.shards[1]->writes = true;
    f.Run(absl::Seconds(1));
    CHECK(late->there());
    CHECK(f.Status().state() == v1::RUNNING);
    f.open_step = 10;
    f.Steps(10);
    f.Leave(late->reply());
    CHECK(f.ends == 0);  // worker:0 has to come again
    CHECK(f.Join(0, 7777)->status().code() == absl::StatusCode::kOutOfRange);
    f.Run(absl::Milliseconds(250));
    CHECK(f.ends == 1);
    CHECK(f.failure == "");
  }
  SECTION("lost when it is saved: readers still have their final weights to come") {
    const auto reader = f.JoinReader();
    f.shards[1]->Written(20);
    f.Leave(f.members[1]);
    CHECK(f.ends == 0);
    f.shards[1]->writes = true;
    f.shards[1]->Kill();
    f.Run(absl::Seconds(1), {reader->reply()});
    CHECK(f.shards[0]->LastInstall().restore().step() == 20);
    CHECK(f.Status().state() == v1::DRAINING);
    CHECK(f.PinOf(reader->reply())->there());
    f.Leave(reader->reply());
    f.Run(absl::Seconds(11));
    CHECK(f.ends == 1);
    CHECK(f.failure == "");
  }
}

}  // namespace
}  // namespace weir
