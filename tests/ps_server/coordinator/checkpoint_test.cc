// When checkpoints are taken, what they hold, and how they end. Also jobs that are drained.
#include <string>
#include <vector>

#include "catch2/catch.hpp"
#include "common/protocol/job_failure.h"
#include "tests/ps_server/coordinator/coordinator_fixture.h"

namespace weir {
namespace {

using Catch::Contains;
constexpr auto kSync = v1::ConsistencyConfig::MODE_SYNC;
constexpr auto kAsync = v1::ConsistencyConfig::MODE_ASYNC;

struct Saved : CoordinatorFixture {
  explicit Saved(v1::ConsistencyConfig::Mode mode, uint32_t workers = 2, uint32_t shards = 2)
      : CoordinatorFixture(mode, workers, shards) {
    train_examples = 8 * 2 * 1000;
    disk = std::make_shared<FakeDisk>();
  }
  size_t Taken() const { return shards[0]->Sent(v1::ControlMessage::kCheckpoint).size(); }
  void Advance(absl::Duration by) { Run(by, members); }
};

TEST_CASE("A job without checkpoint.directory saves nothing") {
  CoordinatorFixture f(kSync);
  f.StartJob();
  CHECK(f.Checkpoint()->status().code() == absl::StatusCode::kFailedPrecondition);
  CHECK(f.Status().checkpoint() == "");
}

TEST_CASE("A checkpoint is of one step on all shards, and complete once the store has committed it") {
  Saved f(kSync);
  f.StartJob();
  f.Steps(3);
  for (auto& shard : f.shards) shard->writes = false;
  f.disk->holds = true;
  const auto first = f.Checkpoint();
  // Training continues while the store makes room, which may take minutes.
  f.Steps(1);
  CHECK(f.Status().step() == 4);
  CHECK(f.Taken() == 0);
  f.disk->Answer();
  for (const auto& shard : f.shards) {
    REQUIRE(shard->Sent(v1::ControlMessage::kCheckpoint).size() == 1);
    CHECK(shard->Sent(v1::ControlMessage::kCheckpoint)[0].checkpoint().step() == 3);
    constexpr int kCommit = v1::ControlMessage::kCommit;
    std::vector<int> order;
    for (const auto& message : shard->sent) {
      if (message.has_freeze()) CHECK((message.freeze().step() == 3 && !message.freeze().release()));
      if (message.has_freeze() || message.has_checkpoint() || message.has_commit()) {
        order.push_back(message.message_case());
      }
    }
    CHECK(order == std::vector<int>{kCommit, kCommit, kCommit, v1::ControlMessage::kFreeze, kCommit,
                                    v1::ControlMessage::kCheckpoint});
  }
  f.Steps(1);  // training continues
  const auto second = f.Checkpoint();
  f.shards[1]->Written(3);
  f.shards[1]->Written(2);
  CHECK(f.disk->held.empty());
  f.shards[0]->Written(3);
  CHECK_FALSE(first->there());
  f.disk->Answer();
  CHECK(first->reply().step() == 3);
  CHECK(first->reply().directory() == "/runs/7/step-3");
  CHECK(second->reply().step() == 3);  // the checkpoint was under way
  CHECK(f.Status().checkpoint() == "/runs/7/step-3");
  const v1::CheckpointManifest& manifest = *f.disk->newest;
  CHECK(manifest.step() == 3);
  CHECK(manifest.files_size() == 2);
  CHECK(manifest.job().committed_steps() == 3);  // the job's step at that time
  CHECK(manifest.job().parts() == 2);
  CHECK(manifest.job().members_size() == 2);
  CHECK(manifest.job().train_examples() == f.train_examples);
  CHECK(manifest.model().tensors(0).name() == "w");
}

TEST_CASE("What a shard reports late, of an earlier attempt at the same step, does not count") {
  Saved f(kSync);
  f.StartJob();
  f.Steps(3);
  for (auto& shard : f.shards) shard->writes = false;
  const auto attempt = [&] {
    return f.shards[1]->Sent(v1::ControlMessage::kCheckpoint).back().checkpoint().attempt();
  };
  const auto first = f.Checkpoint();
  const uint64_t earlier = attempt();
  f.Advance(absl::Minutes(10) + absl::Seconds(1));
  CHECK(first->status().code() == absl::StatusCode::kUnavailable);
  const auto discarded = f.disk->discarded;

  const auto second = f.Checkpoint();
  CHECK(f.Taken() == 2);
  CHECK(attempt() > earlier);
  const std::string error = GENERATE("", "no space left on device");
  f.shards[1]->write_error = error;
  f.shards[1]->Written(3, earlier);
  f.shards[0]->Written(3);
  CHECK_FALSE(second->there());
  CHECK(f.disk->discarded == discarded);  // the files belong to the second attempt
  f.shards[1]->write_error = "";
  // A server of an earlier version does not name the attempt.
  f.shards[1]->Written(3, GENERATE(true, false) ? attempt() : 0);
  CHECK(second->reply().step() == 3);
}

TEST_CASE("After a base come as many checkpoints of changes as the config says, and then a base") {
  Saved f(kSync);
  f.config.mutable_checkpoint()->set_table_deltas(2);
  f.StartJob();
  const auto save = [&] {
    f.Steps(1);
    return f.Checkpoint()->status();
  };
  // The checkpoint that the shards were asked to follow, and how many links of the chain the store was told
  // of.
  const auto follows = [&] {
    return f.shards[0]->Sent(v1::ControlMessage::kFreeze).back().freeze().follows();
  };
  const auto links = [&] { return f.disk->newest->chain_size(); };
  f.shards[1]->writes_deltas = true;  // shard 0 finds that a delta saves too little
  for (const uint64_t expected : {0, 2, 3, 0, 5, 6, 0}) {
    INFO("to follow " << expected);
    REQUIRE(save().ok());
    CHECK(follows() == expected);
    CHECK(links() == (expected > 0 ? 1 : 0));
    if (links() > 0) CHECK(f.disk->newest->chain(0).step() == expected - 1);
  }
  // If no shard writes a delta, the checkpoint is a base, from which the count begins anew.
  REQUIRE(save().ok());
  CHECK(follows() == 8);
  f.shards[1]->writes_deltas = false;
  REQUIRE(save().ok());
  CHECK(links() == 0);
  f.shards[1]->writes_deltas = true;
  for (const uint64_t expected : {10, 11, 0}) {
    REQUIRE(save().ok());
    CHECK(follows() == expected);
  }
  // No checkpoint follows one that failed.
  f.shards[0]->write_error = "the disk is full";
  CHECK(!save().ok());
  f.shards[0]->write_error = "";
  REQUIRE(save().ok());
  CHECK(follows() == 13);
}

TEST_CASE("Changes that no shard was asked for make no checkpoint") {
  Saved f(kSync);
  f.config.mutable_checkpoint()->set_table_deltas(1);
  f.StartJob();
  for (auto& shard : f.shards) shard->writes = false;
  const auto reply = f.Checkpoint();
  v1::ShardReport report;
  report.mutable_checkpoint()->mutable_record()->set_num_shards(2);
  report.mutable_checkpoint()->mutable_record()->add_tables()->set_delta_since(1);
  for (auto& shard : f.shards) shard->events.report(report);
  CHECK_THAT(std::string(reply->status().message()), Contains("was not asked to"));
  CHECK(f.disk->commits == 0);
}

TEST_CASE("The same state is not saved twice") {
  Saved f(kSync);
  f.StartJob();
  f.Steps(1);
  CHECK(f.Checkpoint()->reply().step() == 1);
  CHECK(f.Checkpoint()->reply().step() == 1);
  CHECK(f.Taken() == 1);
}

TEST_CASE("Checkpoints come every so many steps, or seconds, one at a time") {
  Saved f(kSync);
  SECTION("steps") {
    f.config.mutable_checkpoint()->set_every_steps(5);
    f.StartJob();
    f.Steps(4);
    f.Advance(absl::Minutes(2));
    CHECK(f.Taken() == 0);
    f.Steps(1);
    f.Advance(absl::Seconds(1));
    CHECK(f.Taken() == 1);
    f.shards[1]->writes = false;
    f.Steps(5);
    f.Advance(absl::Seconds(1));
    f.Steps(5);
    f.Advance(absl::Seconds(1));
    CHECK(f.Taken() == 2);
    f.shards[1]->Written(10);
    f.Advance(absl::Seconds(1));
    CHECK(f.Taken() == 3);
  }
  SECTION("seconds") {
    f.config.mutable_checkpoint()->set_every_seconds(20);
    f.StartJob();
    f.Advance(absl::Seconds(30));
    CHECK(f.Taken() == 0);  // no new step
    f.Steps(1);
    f.Advance(absl::Seconds(1));
    CHECK(f.Taken() == 1);
    f.Steps(1);
    f.Advance(absl::Seconds(19));
    CHECK(f.Taken() == 1);
    f.Advance(absl::Seconds(2));
    CHECK(f.Taken() == 2);
  }
}

TEST_CASE("async: checkpoints have names that rise, and count steps by pushes") {
  Saved f(kAsync);
  f.config.mutable_checkpoint()->set_every_steps(5);
  f.StartJob();
  f.shards[0]->stats.set_pushes_applied(9);
  f.Advance(absl::Seconds(2));
  CHECK(f.Taken() == 0);
  f.shards[0]->stats.set_pushes_applied(10);
  f.Advance(absl::Seconds(2));
  CHECK(f.disk->newest->step() == 5);
  CHECK(f.Checkpoint()->reply().step() == 6);
  CHECK(f.Checkpoint()->reply().step() == 7);
  f.shards[0]->stats.set_pushes_applied(40);
  f.Advance(absl::Seconds(2));
  CHECK(f.disk->newest->step() == 20);
}

TEST_CASE("A checkpoint that fails on one shard, or in the store, leaves the last; the next is tried later") {
  Saved f(kSync);
  f.config.mutable_checkpoint()->set_every_steps(10);
  f.StartJob();
  f.Steps(10);
  f.Advance(absl::Seconds(1));
  CHECK(f.disk->newest->step() == 10);
  f.Steps(1);
  const std::string seen = GENERATE("shard", "begin", "commit");
  if (seen == "shard") f.shards[1]->write_error = "no space left on device";
  if (seen == "begin") f.disk->begin_status = absl::ResourceExhaustedError("no space left on device");
  if (seen == "commit") f.disk->commit_status = absl::ResourceExhaustedError("no space left on device");
  const auto failed = f.Checkpoint();
  CHECK(failed->status().code() == absl::StatusCode::kUnavailable);
  CHECK_THAT(std::string(failed->status().message()),
             Contains("no space left on device") && Contains("the last one is 10"));
  CHECK(f.Status().checkpoint() == "/runs/7/step-10");
  CHECK(f.ends == 0);
  f.Steps(1);  // training continues
  CHECK(f.Status().step() == 12);
  f.shards[1]->write_error = "";
  f.disk->begin_status = f.disk->commit_status = absl::OkStatus();
  f.Advance(absl::Seconds(4));
  CHECK(f.disk->newest->step() == 10);
  f.Advance(absl::Seconds(2));
  CHECK(f.disk->newest->step() == 12);
}

TEST_CASE("A shard that is lost while one is taken: nothing comes of it, and nobody waits") {
  const auto mode = GENERATE(kSync, kAsync);
  Saved f(mode);
  f.StartJob();
  f.shards[1]->writes = false;
  SECTION("while the shards write") {
    const auto answer = f.Checkpoint();
    f.shards[1]->Kill();
    CHECK(answer->status().code() == absl::StatusCode::kUnavailable);
    CHECK_THAT(std::string(answer->status().message()), Contains("ps:1"));
    f.shards[1]->Written(0);
    CHECK_FALSE(f.disk->newest.has_value());
  }
  SECTION("before they were told") {
    f.disk->holds = true;
    const auto answer = f.Checkpoint();
    f.shards[1]->Kill();
    f.disk->Answer();
    CHECK(answer->status().code() == absl::StatusCode::kUnavailable);
    CHECK(f.Taken() == 0);
    CHECK(f.shards[0]->Sent(v1::ControlMessage::kFreeze).back().freeze().release());
  }
  SECTION("before they were told: the job goes back without waiting for the store") {
    if (mode == kAsync) return;
    f.disk->holds = true;
    const auto answer = f.Checkpoint();
    f.shards[1]->Kill();
    f.Join(0, 7000);
    f.Advance(absl::Seconds(1));
    CHECK(f.shards[1]->Sent(v1::ControlMessage::kInstall).size() == 2);
    CHECK_FALSE(answer->there());
    f.disk->Answer();
    CHECK(answer->status().code() == absl::StatusCode::kUnavailable);
  }
  SECTION("when all have written: it stands, and is what the shard is restored from") {
    f.shards[1]->writes = true;
    f.disk->holds = true;
    const auto answer = f.Checkpoint();
    f.disk->Answer();
    f.shards[1]->Kill();
    if (mode == kSync) {
      f.Join(0, 7000);
    }
    f.Advance(absl::Seconds(1));
    CHECK(f.shards[1]->Sent(v1::ControlMessage::kInstall).size() == 1);  // until the manifest's fate is known
    f.disk->Answer();
    CHECK(answer->status().ok());
    CHECK(f.shards[1]->LastInstall().restore().step() == 0);
  }
  const auto away = f.Status().state() == v1::RUNNING && f.Status().recoveries() > 0;
  if (!away) CHECK(f.Checkpoint()->status().code() == absl::StatusCode::kUnavailable);
}

TEST_CASE("A shard that is lost: who waits for the checkpoint after the current one is answered at once") {
  Saved f(kSync);
  f.StartJob();
  f.Steps(2);
  f.disk->holds = true;
  const std::string phase = GENERATE("begin", "commit");
  const auto current = f.Checkpoint();
  if (phase == "commit") {
    f.disk->Answer();  // all have written
    REQUIRE(f.disk->held.size() == 1);
  }
  f.Steps(1);
  f.coordinator->Drain("SIGTERM");
  f.shards[1]->Kill();
  CHECK_FALSE(current->there());
  CHECK(f.ends == 1);
  CHECK_THAT(f.failure, Contains("could not be saved") && Contains("ps:1") && Contains("was lost"));
}

TEST_CASE("A shard that never writes its part is named, and given up on") {
  Saved f(kSync);
  f.StartJob();
  f.shards[1]->writes = false;
  const auto answer = f.Checkpoint();
  f.Advance(absl::Seconds(11));
  CHECK(f.Status().waiting_for(0) == "ps:1 to write checkpoint 0");
  f.Advance(absl::Minutes(10));
  CHECK_THAT(std::string(answer->status().message()), Contains("ps:1"));
  CHECK(f.ends == 0);
}

TEST_CASE("A job's last checkpoint that hangs is named, and ends the job when it is given up on") {
  const std::string hangs = GENERATE("shard", "store");
  Saved f(kSync, 1);
  f.train_examples = 16;
  f.config.mutable_checkpoint()->set_save_wait_seconds(20);
  f.StartJob();
  f.shards[1]->writes = hangs != "shard";
  f.disk->holds = hangs == "store";
  f.Steps(2);
  REQUIRE(f.Status().state() == v1::DRAINING);
  const auto leave = f.StartLeave(f.members[0]);
  // A large checkpoint may take long.
  f.Run(absl::Minutes(9));
  CHECK(f.ends == 0);
  CHECK_FALSE(leave->there());
  const std::string what = hangs == "shard" ? "ps:1 to write checkpoint 2" : "the disk of checkpoint 2";
  CHECK(f.Status().waiting_for(0) == what);
  // While the shard still writes its part, it cannot write the next checkpoint.
  f.shards[1]->write_error = "this shard still writes an earlier checkpoint";
  f.shards[1]->writes = true;
  f.Run(absl::Minutes(1) + absl::Seconds(15));
  CHECK(f.ends == 0);
  f.Run(absl::Seconds(10));
  CHECK(f.failure_kind == v1::FAILURE_RESOURCE);
  CHECK_THAT(f.failure, Contains("save_wait_seconds = 20"));
  CHECK(KindOf(leave->status()) == v1::FAILURE_RESOURCE);
}

TEST_CASE("A job's last checkpoint that fails again and again ends it: nobody is told that all is well") {
  Saved f(kSync, 1);
  f.train_examples = 16;
  f.config.mutable_checkpoint()->set_save_wait_seconds(20);
  f.StartJob();
  f.Steps(1);
  f.Checkpoint()->reply();
  const std::string seen = GENERATE("shard", "begin");
  if (seen == "shard") f.shards[1]->write_error = "no space left on device";
  if (seen == "begin") f.disk->begin_status = absl::ResourceExhaustedError("no space left on device");
  f.Steps(1);
  const auto leave = f.StartLeave(f.members[0]);
  // Discarding each failed try makes room at once.
  CHECK(f.disk->discarded == std::vector<uint64_t>{2});
  CHECK_THAT(f.Status().waiting_for(0),
             Contains("its last checkpoint to be written") && Contains("no space left on device"));
  f.Run(absl::Seconds(18));
  CHECK_FALSE(leave->there());
  CHECK(f.ends == 0);
  CHECK(f.disk->discarded.size() > 10);
  SECTION("there is room again") {
    f.shards[1]->write_error = "";
    f.disk->begin_status = absl::OkStatus();
    f.Run(absl::Seconds(2));
    CHECK(leave->status().ok());
    CHECK(f.failure == "");
    CHECK(f.disk->newest->step() == 2);
  }
  SECTION("there is not, for as long as the config says") {
    f.Run(absl::Seconds(4));
    CHECK(KindOf(leave->status()) == v1::FAILURE_RESOURCE);
    CHECK(f.failure_kind == v1::FAILURE_RESOURCE);
    CHECK_THAT(f.failure, Contains("no space left on device") &&
                              Contains("checkpoint.save_wait_seconds = 20") && Contains("/runs/7/step-1"));
    CHECK(KindOf(f.Join(0, 7000)->status()) == v1::FAILURE_RESOURCE);
    CHECK(f.disk->newest->step() == 1);
    CHECK(f.Status().waiting_for_size() == 0);
  }
  SECTION("a shard that is away meanwhile is no full disk") {
    f.shards[1]->connects = false;
    f.shards[1]->Kill();
    f.Run(absl::Seconds(3));
    CHECK(f.ends == 0);
  }
  if (f.ends > 0) CHECK(f.ends == 1);
}

TEST_CASE("With no time to wait, the first failure of the last checkpoint ends the job") {
  Saved f(kSync, 1);
  f.train_examples = 8;
  f.config.mutable_checkpoint()->set_save_wait_seconds(0);
  f.StartJob();
  f.shards[0]->write_error = "no space left on device";
  f.Steps(1);
  f.HeartbeatAll();
  CHECK(f.ends == 1);
  CHECK(f.failure_kind == v1::FAILURE_RESOURCE);
}

TEST_CASE("What a shard writes late of a checkpoint that came to nothing goes, too; what is complete stays") {
  Saved f(kSync);
  f.StartJob();
  f.Steps(3);
  f.shards[0]->write_error = "no space left on device";
  f.shards[1]->writes = false;
  CHECK_FALSE(f.Checkpoint()->status().ok());
  CHECK(f.disk->discarded == std::vector<uint64_t>{3});
  f.shards[1]->Written(3);
  CHECK(f.disk->discarded == std::vector<uint64_t>{3, 3});
  f.shards[0]->write_error = "";
  f.shards[1]->writes = true;
  CHECK(f.Checkpoint()->reply().step() == 3);
  f.shards[1]->Written(3);
  CHECK(f.disk->discarded.size() == 2);
}

TEST_CASE("A part of another number of shards is no part of the checkpoint") {
  Saved f(kSync);
  f.StartJob();
  f.Steps(3);
  f.shards[1]->num_shards = 3;
  const auto answer = f.Checkpoint();
  CHECK(answer->status().code() == absl::StatusCode::kUnavailable);
  CHECK_THAT(std::string(answer->status().message()),
             Contains("ps:1 has written a part of 3 shards, but the job has 2"));
  CHECK_FALSE(f.disk->newest.has_value());
  CHECK(f.disk->discarded == std::vector<uint64_t>{3});
}

TEST_CASE("A log that cannot be written ends the job as a failure of storage") {
  Saved f(kAsync);
  f.StartJob();
  v1::ShardReport report;
  report.mutable_failed()->set_error("shard 1 cannot write its log: no space left on device");
  f.shards[1]->events.report(report);
  f.HeartbeatAll();
  CHECK(f.ends == 1);
  CHECK(f.failure_kind == v1::FAILURE_RESOURCE);
  CHECK_THAT(f.failure, Contains("ps:1") && Contains("no space left on device"));
}

TEST_CASE("A shard that cannot go on for a reason of its own ends the job with that kind of failure") {
  Saved f(kSync);
  f.StartJob();
  v1::ShardReport report;
  report.mutable_failed()->set_error(
      "shard 1 cannot commit step 3 as ps:0 decided: part 2 is not staged here");
  report.mutable_failed()->set_kind(v1::FAILURE_INTERNAL);
  f.shards[1]->events.report(report);
  f.HeartbeatAll();
  CHECK(f.ends == 1);
  CHECK(f.failure_kind == v1::FAILURE_INTERNAL);
  CHECK_THAT(f.failure, Contains("ps:1 at ") && Contains(": shard 1 cannot commit step 3"));
}

TEST_CASE("A job that is drained is saved with all that was acknowledged, and then ends") {
  const auto mode = GENERATE(kSync, kAsync);
  Saved f(mode);
  f.StartJob();
  if (mode == kSync) f.Steps(3);
  f.shards[1]->writes = false;
  f.coordinator->Drain("SIGTERM");
  CHECK(f.ends == 0);
  // By then the shards accept no pushes.
  CHECK(f.shards[0]->Membership().members_size() == 0);
  CHECK(f.shards[0]->sent.back().has_checkpoint());
  CHECK(f.Heartbeat(f.members[0])->reply().fenced());
  const auto join = f.Join(0, 7000);
  CHECK_FALSE(join->there());
  f.Steps(mode == kSync ? 1 : 0);
  CHECK(f.shards[0]->Sent(v1::ControlMessage::kCommit).size() == (mode == kSync ? 3 : 0));
  SECTION("saved") {
    f.shards[1]->Written(f.shards[0]->sent.back().checkpoint().step());
    CHECK(f.ends == 1);
    CHECK(f.failure_kind == v1::FAILURE_DRAINED);
    CHECK_THAT(f.failure, Contains("SIGTERM") && Contains("/runs/7/step-"));
    CHECK(f.shards[1]->Sent(v1::ControlMessage::kShutdown)[0].shutdown().failure() == f.failure);
    CHECK(join->status().code() == absl::StatusCode::kAborted);
  }
  SECTION("it cannot be saved") {
    f.shards[1]->write_error = "no space left on device";
    f.shards[1]->Written(f.shards[0]->sent.back().checkpoint().step());
    CHECK(f.ends == 1);
    CHECK(f.failure.rfind("SIGTERM", 0) == 0);
    CHECK_THAT(f.failure, Contains("no space left on device"));
  }
}

TEST_CASE("A job that is drained while a checkpoint is being written takes its own right after that one") {
  const auto mode = GENERATE(kSync, kAsync);
  Saved f(mode);
  f.StartJob();
  if (mode == kSync) f.Steps(3);
  f.shards[1]->writes = false;
  const auto periodic = f.Checkpoint();
  const uint64_t first = f.shards[1]->sent.back().checkpoint().step();
  if (mode == kSync) f.Steps(2);
  f.coordinator->Drain("SIGTERM");
  SECTION("which is complete") {
    f.shards[1]->Written(first);
    CHECK(periodic->reply().step() == first);
    CHECK(f.Taken() == 2);
  }
  SECTION("which fails") {
    f.shards[1]->write_error = "an error of the disk";
    f.shards[1]->Written(first);
    f.shards[1]->write_error = "";
    CHECK_FALSE(periodic->status().ok());
    CHECK(f.Taken() == 2);
  }
  CHECK(f.ends == 0);
  f.shards[1]->Written(f.shards[1]->sent.back().checkpoint().step());
  CHECK(f.ends == 1);
  CHECK(f.failure_kind == v1::FAILURE_DRAINED);
  CHECK(f.disk->newest->step() > first);
}

TEST_CASE("After a checkpoint that fails on one shard the next begins when the others have ended theirs") {
  const auto mode = GENERATE(kSync, kAsync);
  Saved f(mode);
  f.StartJob();
  if (mode == kSync) f.Steps(3);
  for (auto& shard : f.shards) shard->writes = false;
  const auto periodic = f.Checkpoint();
  const uint64_t first = f.shards[1]->sent.back().checkpoint().step();
  const auto is_unavailable = [](const auto& answer) {
    return answer->status().code() == absl::StatusCode::kUnavailable;
  };
  SECTION("the next one is that of a job that is drained") {
    f.shards[0]->write_error = "no space left on device";
    f.shards[0]->Written(first);
    f.shards[0]->write_error = "";
    CHECK(is_unavailable(periodic));
    f.coordinator->Drain("SIGTERM");
    CHECK(f.Taken() == 1);
    CHECK(f.ends == 0);
    f.shards[1]->Written(first);
    CHECK(f.Taken() == 2);
    for (auto& shard : f.shards) shard->Written(shard->sent.back().checkpoint().step());
    CHECK(f.ends == 1);
    CHECK(f.failure_kind == v1::FAILURE_DRAINED);
  }
  SECTION("one that does not end it is waited for as long as for a checkpoint") {
    f.shards[0]->write_error = "no space left on device";
    f.shards[0]->Written(first);
    const auto later = f.Checkpoint();
    CHECK(f.Taken() == 1);
    f.Advance(absl::Seconds(11));
    CHECK(f.Status().waiting_for(0) == absl::StrCat("ps:1 to end checkpoint ", first, ", which has failed"));
    f.Advance(absl::Minutes(10));
    CHECK(f.Taken() == 2);
    CHECK_FALSE(later->there());
  }
  SECTION("a shard that was lost ends nothing any more") {
    f.shards[0]->Kill();
    CHECK(is_unavailable(periodic));
    if (mode == kSync) return;  // the other shards go back
    f.Advance(absl::Seconds(1));
    const auto later = f.Checkpoint();
    CHECK(f.Taken() == 1);
    SECTION("the other one does") { f.shards[1]->Written(first); }
    SECTION("or is lost, too") {
      f.shards[1]->Kill();
      CHECK(is_unavailable(later));
      f.Advance(absl::Seconds(1));
      f.Checkpoint();
    }
    CHECK(f.Taken() == 2);
  }
}

TEST_CASE("A coordinator that was replaced ends, without a word to shards, which may be the other one's") {
  const bool at_begin = GENERATE(true, false);
  Saved f(kSync);
  f.StartJob();
  f.Steps(2);
  const absl::Status replaced =
      absl::AbortedError("/runs/7 belongs to another ps:0 now, process 12 on gpu-4");
  (at_begin ? f.disk->begin_status : f.disk->commit_status) = replaced;
  const auto answer = f.Checkpoint();
  CHECK(f.ends == 1);
  CHECK(f.failure == "replaced: /runs/7 belongs to another ps:0 now, process 12 on gpu-4");
  for (const auto& shard : f.shards) CHECK(shard->Sent(v1::ControlMessage::kShutdown).empty());
  CHECK(f.Join(0, 7000)->status().code() != absl::StatusCode::kOk);
}

TEST_CASE(
    "A coordinator whose server takes part under a later one was replaced, and ends without a word to "
    "others") {
  Saved f(kSync, 2, 3);
  f.StartJob();
  f.Steps(2);
  f.shards[1]->events.ended(absl::FailedPreconditionError("a later coordinator has this shard"));
  CHECK(f.ends == 1);
  CHECK_THAT(f.failure, Contains("a later coordinator has this shard") && Contains("ps:1"));
  CHECK(f.failure_kind == v1::FAILURE_FENCED);
  // These shards may belong to the other ps:0, now or soon.
  for (const auto& shard : f.shards) CHECK(shard->Sent(v1::ControlMessage::kShutdown).empty());
}

TEST_CASE("A coordinator whose own shard finds its log taken was replaced; another server's fails the job") {
  const uint32_t index = GENERATE(0u, 1u);
  Saved f(kAsync);
  f.StartJob();
  f.Run(absl::Seconds(1), f.members);
  f.disk->reserve_status = absl::AbortedError("/runs/7 belongs to another ps:0 now");
  v1::ShardReport report;
  report.mutable_failed()->set_error("cannot write its log: File exists");
  report.mutable_failed()->set_replaced(true);
  f.shards[index]->events.report(report);
  f.HeartbeatAll();
  CHECK(f.ends == 1);
  CHECK((f.failure_kind == v1::FAILURE_FENCED) == (index == 0));
  CHECK(f.shards[1]->Sent(v1::ControlMessage::kShutdown).empty() == (index == 0));
}

TEST_CASE("A coordinator to whom nobody comes finds out whether it was replaced before it fails") {
  const bool starts = GENERATE(true, false);
  const bool replaced = GENERATE(true, false);
  Saved f(kSync);
  if (starts) {
    f.StartJob();
  } else {
    f.Start();
  }
  f.Run(absl::Seconds(1));
  if (replaced) f.disk->reserve_status = absl::AbortedError("/runs/7 belongs to another ps:0 now");
  // This is longer than the leases, and than the wait for workers.
  f.Run(absl::Seconds(400));
  REQUIRE(f.ends == 1);
  CHECK((f.failure_kind == v1::FAILURE_FENCED) == replaced);
}

TEST_CASE("A coordinator whose server does not come back finds out whether it was replaced before it fails") {
  const bool replaced = GENERATE(true, false);
  Saved f(kSync);
  f.StartJob();
  f.Steps(2);
  f.shards[1]->connects = false;
  f.shards[1]->Kill();
  f.Run(absl::Seconds(1));
  CHECK(f.ends == 0);
  if (replaced) f.disk->reserve_status = absl::AbortedError("/runs/7 belongs to another ps:0 now");
  // In all this is longer than cluster.server_wait_seconds.
  f.Run(absl::Seconds(5));
  REQUIRE(f.ends == 1);
  CHECK_THAT(f.failure, replaced ? Contains("another ps:0") : Contains("did not come back within"));
  CHECK((f.failure_kind == v1::FAILURE_FENCED) == replaced);
  CHECK(f.shards[0]->Sent(v1::ControlMessage::kShutdown).empty() == replaced);
}

TEST_CASE("A coordinator that was replaced finds out when it needs numbers") {
  Saved f(kSync);
  f.StartJob();
  f.disk->reserve_status = absl::AbortedError("/runs/7 belongs to another ps:0 now, process 12 on gpu-4");
  for (uint64_t reader = 0; reader < 2000 && f.ends == 0; ++reader) {
    const auto joined = f.JoinReader(9000 + reader);
    if (joined->status().ok()) f.Leave(joined->reply());
  }
  CHECK(f.failure_kind == v1::FAILURE_FENCED);
  for (const auto& shard : f.shards) CHECK(shard->Sent(v1::ControlMessage::kShutdown).empty());
}

TEST_CASE("Drained without a store, before the start, or while it recovers") {
  CoordinatorFixture plain(kSync);
  plain.StartJob();
  plain.coordinator->Drain("SIGTERM");
  plain.HeartbeatAll();
  CHECK(plain.failure == "SIGTERM");

  Saved early(kSync);
  early.Start();
  early.coordinator->Drain("SIGTERM");
  CHECK(early.failure == "SIGTERM");

  Saved recovering(kSync);
  recovering.StartJob();
  recovering.Steps(2);
  recovering.Checkpoint()->reply();
  recovering.shards[1]->Kill();
  recovering.coordinator->Drain("SIGTERM");
  CHECK(recovering.failure_kind == v1::FAILURE_DRAINED);

  Saved lost(kSync);
  lost.StartJob();
  lost.Steps(2);
  lost.Checkpoint()->reply();
  lost.Steps(2);
  lost.shards[1]->writes = false;
  lost.coordinator->Drain("SIGTERM");
  lost.shards[1]->Kill();
  CHECK(lost.ends == 1);
  CHECK_THAT(lost.failure, Contains("could not be saved") && Contains("ps:1"));
  CHECK(lost.Status().state() == v1::FAILED);
}

TEST_CASE("A coordinator that goes while one is taken answers who waits for it") {
  Saved f(kSync);
  f.StartJob();
  f.disk->holds = true;
  const auto answer = f.Checkpoint();
  f.coordinator.reset();
  CHECK(answer->times == 1);
  CHECK(f.ends == 1);
}

}  // namespace
}  // namespace weir
