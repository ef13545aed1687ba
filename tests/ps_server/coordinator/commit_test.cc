// Sync steps, which are committed on every shard with the same parts, or on none; and the end of a job.
#include <functional>
#include <string>
#include <vector>

#include "catch2/catch.hpp"
#include "common/protocol/job_failure.h"
#include "tests/ps_server/coordinator/coordinator_fixture.h"

namespace weir {
namespace {

constexpr auto kSync = v1::ConsistencyConfig::MODE_SYNC;
constexpr auto kAsync = v1::ConsistencyConfig::MODE_ASYNC;

std::vector<v1::CommitStep> Commits(const FakeShard& shard) {
  std::vector<v1::CommitStep> out;
  for (const auto& message : shard.Sent(v1::ControlMessage::kCommit)) out.push_back(message.commit());
  return out;
}

std::vector<uint32_t> Parts(const v1::CommitStep& commit) {
  return {commit.parts().begin(), commit.parts().end()};
}

// The job waits for processes that have yet to hear of its end. It ends soon after `they_come` or, if they do
// not come, when their time is over. Call this last in a case, since it has the case's sections.
void CheckEndsOnceTold(CoordinatorFixture& f, const std::function<void()>& they_come) {
  SECTION("they come") {
    they_come();
    f.Run(absl::Milliseconds(250));
    CHECK(f.ends == 1);
  }
  SECTION("they do not") {
    f.Run(absl::Seconds(1));
    CHECK(f.ends == 1);
  }
  CHECK(f.failure == "");
}

TEST_CASE("A step is committed when every shard has staged it, and once") {
  CoordinatorFixture f(kSync, 2, 3);
  f.StartJob();
  f.shards[0]->Staged(0);
  f.shards[2]->Staged(0);
  f.shards[2]->Staged(0);
  for (const auto& shard : f.shards) CHECK(Commits(*shard).empty());
  f.shards[1]->Staged(0);
  for (const auto& shard : f.shards) {
    REQUIRE(Commits(*shard).size() == 1);
    CHECK(Commits(*shard)[0].step() == 0);
    CHECK(Parts(Commits(*shard)[0]) == std::vector<uint32_t>{0, 1});
  }
  CHECK(f.Status().step() == 1);
  // Repeats of the report have no effect.
  for (const auto& shard : f.shards) shard->Staged(0);
  CHECK(Commits(*f.shards[0]).size() == 1);
  for (const auto& shard : f.shards) shard->Staged(1);
  CHECK(Commits(*f.shards[0]).size() == 2);
}

TEST_CASE("A part that any shard refused is left out on all of them") {
  CoordinatorFixture f(kSync, 3, 3);
  f.config.mutable_consistency()->set_on_nonfinite(
      GENERATE(v1::ConsistencyConfig::ON_NONFINITE_REJECT, v1::ConsistencyConfig::ON_NONFINITE_SKIP_WORKER));
  f.StartJob();
  f.shards[0]->Staged(0, {1}, "the gradient of w[3] is not finite");
  f.shards[1]->Staged(0);
  f.shards[2]->Staged(0, {2, 1}, "the gradient of w[9] is not finite");
  for (const auto& shard : f.shards) {
    REQUIRE(Commits(*shard).size() == 1);
    CHECK(Parts(Commits(*shard)[0]) == std::vector<uint32_t>{0});
  }
  for (const auto& shard : f.shards) shard->Staged(1, {0, 1, 2}, "nothing is finite");
  REQUIRE(Commits(*f.shards[1]).size() == 2);
  CHECK(Commits(*f.shards[1])[1].parts_size() == 0);
  CHECK(f.Status().step() == 2);
}

TEST_CASE(
    "With backup workers a step is committed with the first parts that every shard has, by rising part") {
  CoordinatorFixture f(kSync, 4, 3);
  f.config.mutable_consistency()->set_backup_workers(1);
  f.config.mutable_consistency()->set_on_nonfinite(v1::ConsistencyConfig::ON_NONFINITE_REJECT);
  f.train_examples = 8 * 4 * 5;
  f.StartJob();
  f.shards[0]->StagedParts(0, {1, 2, 3});
  f.shards[1]->StagedParts(0, {0, 1, 3});
  f.shards[2]->StagedParts(0, {0, 2, 3});
  for (const auto& shard : f.shards) CHECK(Commits(*shard).empty());  // only part 3 is on every shard
  f.shards[1]->StagedParts(0, {0, 1, 2, 3});
  CHECK(Commits(*f.shards[0]).empty());
  f.shards[2]->StagedParts(0, {0, 1, 2, 3});
  for (const auto& shard : f.shards) {
    REQUIRE(Commits(*shard).size() == 1);
    CHECK(Parts(Commits(*shard)[0]) == std::vector<uint32_t>{1, 2, 3});  // the same on all shards
  }
  f.shards[0]->StagedParts(0, {0, 1, 2, 3});  // late, for a past step
  CHECK(Commits(*f.shards[0]).size() == 1);
  // All parts are there: the first three are committed.
  for (const auto& shard : f.shards) shard->StagedParts(1, {0, 1, 2, 3});
  CHECK(Parts(Commits(*f.shards[0])[1]) == std::vector<uint32_t>{0, 1, 2});
  // A refused part counts as present, but is not committed.
  f.shards[0]->StagedParts(2, {0, 1, 2}, {1});
  f.shards[1]->StagedParts(2, {0, 1, 2});
  f.shards[2]->StagedParts(2, {0, 1, 2, 3});
  CHECK(Parts(Commits(*f.shards[0])[2]) == std::vector<uint32_t>{0, 2});
}

TEST_CASE("Backup workers in a last step that is short: one part at least") {
  CoordinatorFixture f(kSync, 4, 1);
  f.config.mutable_consistency()->set_backup_workers(2);
  f.train_examples = 8 * 5;  // steps of 4 and 1
  f.StartJob();
  f.shards[0]->StagedParts(0, {2});
  CHECK(Commits(*f.shards[0]).empty());
  f.shards[0]->StagedParts(0, {0, 2});
  CHECK(Parts(Commits(*f.shards[0])[0]) == std::vector<uint32_t>{0, 2});
  f.shards[0]->StagedParts(1, {0});
  CHECK(Parts(Commits(*f.shards[0])[1]) == std::vector<uint32_t>{0});
  CHECK(f.Status().state() == v1::DRAINING);
}

TEST_CASE("A step that a shard lacks is on no shard, whoever dies meanwhile") {
  CoordinatorFixture f(kSync);
  f.StartJob();
  f.shards[0]->Staged(0);
  f.Leave(f.members[1], false, "crashed");
  f.Join(1, 7777);
  CHECK(Commits(*f.shards[0]).empty());
  f.shards[1]->Staged(0);
  CHECK(Commits(*f.shards[0]).size() == 1);
  CHECK(Parts(Commits(*f.shards[1])[0]) == std::vector<uint32_t>{0, 1});
}

TEST_CASE("R is the config's, the last step has the parts that are left, and then the job drains") {
  CoordinatorFixture f(kSync, 2, 1);
  f.config.mutable_consistency()->set_parts(4);
  f.train_examples = 41;  // 6 batches: steps of 4 and 2
  f.StartJob();
  CHECK(f.members[0].parts() == 4);
  CHECK(f.members[0].total_steps() == 2);
  CHECK(f.members[0].total_batches() == 6);
  f.shards[0]->Staged(0);
  CHECK(Parts(Commits(*f.shards[0])[0]).size() == 4);
  const auto parked = f.Heartbeat(f.members[0], f.Heartbeat(f.members[0])->reply().revision());
  f.shards[0]->Staged(1);
  CHECK(Parts(Commits(*f.shards[0])[1]) == std::vector<uint32_t>{0, 1});
  CHECK(parked->reply().state() == v1::DRAINING);
  CHECK(f.Status().examples() == 41);
  f.shards[0]->Staged(2);
  CHECK(Commits(*f.shards[0]).size() == 2);
}

TEST_CASE("Workers who leave when all is done are told of together, by the next tick") {
  CoordinatorFixture f(kSync, 4, 1);
  f.train_examples = 32;  // one step
  f.StartJob();
  f.shards[0]->Staged(0);
  REQUIRE(f.Status().state() == v1::DRAINING);
  const auto revision = f.Heartbeat(f.members[3])->reply().revision();
  const auto parked = f.Heartbeat(f.members[3], revision);
  const size_t told = f.shards[0]->Sent(v1::ControlMessage::kMembership).size();
  for (int leaver = 0; leaver < 3; ++leaver) f.Leave(f.members[leaver]);
  CHECK(f.Status().membership().members_size() == 1);
  CHECK(f.shards[0]->Sent(v1::ControlMessage::kMembership).size() == told);
  CHECK_FALSE(parked->there());
  f.coordinator->Tick();
  CHECK(f.shards[0]->Sent(v1::ControlMessage::kMembership).size() == told + 1);
  CHECK(f.shards[0]->Membership().members_size() == 1);
  REQUIRE(parked->there());
  CHECK(parked->reply().membership().members_size() == 1);
}

TEST_CASE("A job ends when all have left: last stats, then the servers are told, once") {
  CoordinatorFixture f(kSync);
  f.train_examples = 16;
  f.StartJob();
  const auto reader = f.JoinReader();
  for (const auto& shard : f.shards) shard->Staged(0);
  f.Leave(f.members[0]);
  f.Leave(f.members[1]);
  CHECK(f.ends == 0);  // the reader is still in the job
  v1::ReportRequest report;
  *report.mutable_caller() = f.CallerOf(reader->reply());
  report.mutable_evaluation()->set_test_accuracy(0.75);
  report.mutable_evaluation()->set_final(true);
  f.coordinator->Report(report, [](absl::StatusOr<v1::ReportReply>) {});
  report.mutable_evaluation()->set_test_accuracy(0.5);
  report.mutable_evaluation()->set_final(false);
  f.coordinator->Report(report, [](absl::StatusOr<v1::ReportReply>) {});
  const auto refused = [&](absl::StatusCode code) {
    auto answer = std::make_shared<Answer<v1::ReportReply>>();
    f.coordinator->Report(report, Keep(answer));
    CHECK(answer->status().code() == code);
  };
  report.mutable_evaluation()->set_final(true);
  report.mutable_evaluation()->set_weights_sha256(std::string(65, '0'));
  refused(absl::StatusCode::kInvalidArgument);
  report.mutable_evaluation()->clear_weights_sha256();
  *report.mutable_caller() = f.CallerOf(f.members[0]);  // this member has left
  refused(absl::StatusCode::kAborted);
  for (const auto& shard : f.shards) {
    shard->answers_pings = false;
    shard->stats.set_bytes_pushed(1234);
  }
  f.Leave(reader->reply());
  CHECK(f.ends == 0);
  for (const auto& shard : f.shards) {
    CHECK(shard->Sent(v1::ControlMessage::kShutdown).empty());
    shard->AnswerPing(shard->Sent(v1::ControlMessage::kPing).back().ping().sequence());
  }
  CHECK(f.ends == 1);
  CHECK(f.failure == "");
  CHECK(f.final_status.state() == v1::DONE);
  CHECK(f.final_status.bytes_pushed() == 2 * 1234);
  CHECK(f.final_status.evaluation().test_accuracy() == 0.75);  // a late report does not replace the final one
  for (const auto& shard : f.shards) {
    REQUIRE(shard->Sent(v1::ControlMessage::kShutdown).size() == 1);
    CHECK(shard->Sent(v1::ControlMessage::kShutdown)[0].shutdown().failure() == "");
  }
  CHECK(f.Heartbeat(f.members[0])->reply().state() == v1::DONE);
  CHECK_FALSE(f.Heartbeat(f.members[0])->reply().fenced());
  f.coordinator->Fail("too late");
  f.coordinator.reset();
  CHECK(f.ends == 1);
}

TEST_CASE("A job does not end before every shard has published the last step") {
  CoordinatorFixture f(kSync);
  f.train_examples = 16;
  f.StartJob();
  // This shard cannot publish before its readers release memory.
  f.shards[1]->publishes = false;
  for (const auto& shard : f.shards) shard->Staged(0);
  f.Leave(f.members[0]);
  f.Leave(f.members[1]);
  CHECK(f.ends == 0);
  CHECK(f.shards[0]->Sent(v1::ControlMessage::kShutdown).empty());
  f.shards[1]->stats.mutable_version()->set_count(1);
  f.clock.Advance(absl::Seconds(1));
  f.coordinator->Tick();
  CHECK(f.ends == 1);
  CHECK(f.failure == "");
}

TEST_CASE(
    "Who is to evaluate the weights and dies is followed by the next one, or by one that comes for it") {
  CoordinatorFixture f(kSync);
  f.train_examples = 16;
  f.StartJob();
  v1::ReportRequest report;
  *report.mutable_caller() = f.CallerOf(f.members[1]);
  report.mutable_evaluation()->set_final(true);
  // The job may have gone back to a checkpoint since the weights were read.
  f.coordinator->Report(report, [](absl::StatusOr<v1::ReportReply>) {});
  for (const auto& shard : f.shards) shard->Staged(0);
  REQUIRE(f.Status().state() == v1::DRAINING);
  CHECK_FALSE(f.Heartbeat(f.members[1])->reply().evaluated());
  f.coordinator->OnDisconnect(f.CallerOf(f.members[0]));
  f.Run(absl::Seconds(1.25), {f.members[1]});
  REQUIRE(f.Heartbeat(f.members[1])->reply().membership().members_size() == 1);
  v1::JoinReply evaluator = f.members[1];
  SECTION("the next one") {}
  SECTION("one that comes") {
    f.coordinator->OnDisconnect(f.CallerOf(f.members[1]));
    f.Run(absl::Seconds(5));
    CHECK(f.ends == 0);
    const auto again = f.Join(0, 7777);
    REQUIRE(again->there());
    evaluator = again->reply();
  }
  SECTION("nobody") {
    f.coordinator->OnDisconnect(f.CallerOf(f.members[1]));
    f.Run(absl::Seconds(58));
    CHECK(f.ends == 0);
    f.Run(absl::Seconds(5));
    CHECK(f.ends == 1);
    CHECK_THAT(
        f.failure,
        Catch::StartsWith("all 16 examples are done, but no worker has evaluated the weights: no worker"));
    return;
  }
  *report.mutable_caller() = f.CallerOf(evaluator);
  f.coordinator->Report(report, [](absl::StatusOr<v1::ReportReply>) {});
  CHECK(f.Heartbeat(evaluator)->reply().evaluated());
  CHECK(absl::IsOutOfRange(f.Join(f.members.size() - 1 - evaluator.worker(), 8888)->status()));
  f.Leave(evaluator);
  f.Run(absl::Seconds(1.25));
  CHECK(f.ends == 1);
  CHECK(f.failure == "");
}

TEST_CASE("A job whose workers evaluate nothing does not wait for it") {
  CoordinatorFixture f(kSync);
  f.train_examples = 16;
  f.StartJob();
  for (const auto& shard : f.shards) shard->Staged(0);
  f.Leave(f.members[0]);
  CHECK(absl::IsOutOfRange(f.Join(0, 7777)->status()));
  f.coordinator->OnDisconnect(f.CallerOf(f.members[1]));
  f.Run(absl::Seconds(3));
  CHECK(f.ends == 1);
  CHECK(f.failure == "");
}

TEST_CASE("A job that is done waits for who fell silent, for a lease, to tell it so") {
  CoordinatorFixture f(kSync, 3);
  f.train_examples = 24;
  f.StartJob();
  f.Run(absl::Seconds(11), {f.members[0], f.members[1]});  // worker:2 has been stopped
  REQUIRE(f.Status().membership().members_size() == 2);
  for (const auto& shard : f.shards) shard->StagedParts(0, {0, 1, 2});
  REQUIRE(f.Status().state() == v1::DRAINING);
  f.Leave(f.members[0]);
  f.Leave(f.members[1]);
  f.Run(absl::Seconds(9.5));
  CHECK(f.ends == 0);
  CHECK(f.Status().waiting_for(0) == "worker:2 (lost before) to be told that the job is done");
  CheckEndsOnceTold(f, [&] {
    CHECK(f.Heartbeat(f.members[2])->reply().fenced());
    CHECK(absl::IsOutOfRange(f.Join(2, 7777)->status()));
  });
}

TEST_CASE("A job that is done waits for who was taken out because another process of its rank had called") {
  CoordinatorFixture f(kSync, 2);
  f.disk = std::make_shared<FakeDisk>();
  f.train_examples = 16;
  f.StartJob();
  f.Run(absl::Seconds(11), f.members);  // from now on only workers that were there before are awaited
  for (const auto& shard : f.shards) shard->writes = false;
  for (const auto& shard : f.shards) shard->StagedParts(0, {0, 1});
  const auto leave = f.StartLeave(f.members[0]);
  f.coordinator->OnDisconnect(f.CallerOf(f.members[1]));
  // This is a new process, or a late repeat of a Join that was for the previous ps:0.
  const auto other = f.Join(1, 7777);
  REQUIRE(f.Status().membership().members_size() == 0);
  const auto early = f.StartLeave(f.members[1]);
  CHECK(absl::IsAborted(early->status()));
  for (const auto& shard : f.shards) shard->Written(1);
  CHECK(leave->status().ok());
  CHECK(absl::IsOutOfRange(other->status()));
  f.Run(absl::Milliseconds(500));
  CHECK(f.ends == 0);
  CHECK(f.Status().waiting_for(0) == "worker:1 (lost before) to be told that the job is done");
  CheckEndsOnceTold(f, [&] { CHECK(absl::IsOutOfRange(f.Join(1, 8888)->status())); });
}

TEST_CASE("A late repeat of a Join does not count as told that the job is done") {
  CoordinatorFixture f(kSync, 2);
  f.train_examples = 16;
  f.StartJob();
  f.Run(absl::Seconds(11), {f.members[0]});  // worker:1 has been stopped
  for (const auto& shard : f.shards) shard->StagedParts(0, {0, 1});
  f.Leave(f.members[0]);
  CHECK(absl::IsOutOfRange(f.Join(1)->status()));
  f.Run(absl::Seconds(1));
  CHECK(f.ends == 0);
  CHECK(absl::IsOutOfRange(f.Join(1, 7777)->status()));  // the process continues
  f.Run(absl::Milliseconds(250));
  CHECK(f.ends == 1);
  CHECK(f.failure == "");
}

TEST_CASE("A job that is done waits for who waited to join when its connection broke") {
  CoordinatorFixture f(kSync, 2);
  f.disk = std::make_shared<FakeDisk>();
  f.train_examples = 16;
  f.StartJob();
  f.coordinator->OnDisconnect(f.CallerOf(f.members[1]));
  f.Run(absl::Seconds(11), {f.members[0]});
  for (const auto& shard : f.shards) shard->writes = false;
  for (const auto& shard : f.shards) shard->StagedParts(0, {0, 1});
  const auto leave = f.StartLeave(f.members[0]);
  const auto join = f.Join(f.JoinRequest(1, 7777), /*call=*/5);
  REQUIRE_FALSE(join->there());  // no process hears of the end before it is saved
  f.coordinator->OnJoinCancelled(7777, 5);
  for (const auto& shard : f.shards) shard->Written(1);
  CHECK(leave->status().ok());
  f.Run(absl::Milliseconds(500));
  CHECK(f.ends == 0);
  CheckEndsOnceTold(f, [&] { CHECK(absl::IsOutOfRange(f.Join(1, 7777)->status())); });
}

TEST_CASE("A job that is done within a lease waits that long for workers that have not come yet") {
  CoordinatorFixture f(kSync, 3);
  f.config.mutable_cluster()->set_min_workers(1);
  f.train_examples = 24;
  f.Start();
  const v1::JoinReply first = f.Join(0)->reply();
  for (const auto& shard : f.shards) shard->StagedParts(0, {0, 1, 2});
  REQUIRE(f.Status().state() == v1::DRAINING);
  f.Leave(first);
  f.Run(absl::Seconds(9.5));
  CHECK(f.ends == 0);
  CHECK(f.Status().waiting_for(0) == "the worker of rank 1 (not there yet) to be told that the job is done");
  CheckEndsOnceTold(f, [&] {
    CHECK(absl::IsOutOfRange(f.Join(1)->status()));
    CHECK(absl::IsOutOfRange(f.Join(2)->status()));
  });
}

TEST_CASE("A job that is done does not wait for who has given up, is dead for long, or came again and left") {
  CoordinatorFixture f(kSync, 4);
  f.train_examples = 32;
  f.StartJob();
  f.coordinator->OnDisconnect(f.CallerOf(f.members[1]));
  f.Run(absl::Seconds(3), {f.members[0], f.members[2], f.members[3]});
  f.Leave(f.members[2], false, "its disk is full");
  f.Run(absl::Seconds(11), {f.members[0]});
  REQUIRE(f.Status().membership().members_size() == 1);
  const auto again = f.Join(3, 7777);
  for (const auto& shard : f.shards) shard->StagedParts(0, {0, 1, 2, 3});
  f.Leave(f.members[0]);
  CHECK(f.ends == 0);
  f.Leave(again->reply());
  CHECK(f.ends == 1);
}

TEST_CASE("A worker that gives up does not end the job; the last one does, with its reason") {
  CoordinatorFixture f(kSync);
  f.StartJob();
  f.Leave(f.members[0], false, "its disk is full");
  CHECK(f.ends == 0);
  CHECK(f.Status().state() == v1::RUNNING);
  f.Leave(f.members[1], false, "the loss is NaN");
  CHECK(f.ends == 1);
  CHECK_THAT(f.failure, Catch::Contains("worker:1") && Catch::Contains("the loss is NaN"));
}

constexpr char kDiverged[] = "training diverged: worker 1 (worker:1): the gradient of w[3] is NaN at clock 7";

TEST_CASE("on_nonfinite stop: a part that a shard refused ends the job") {
  CoordinatorFixture f(kSync, 2, 2);
  f.StartJob();
  f.shards[0]->Staged(0);
  f.shards[1]->Staged(0, {1}, "worker 1 (worker:1): the gradient of w[3] is not finite at clock 0");
  f.HeartbeatAll();
  CHECK(f.ends == 1);
  CHECK(Commits(*f.shards[0]).empty());
  CHECK_THAT(f.failure, Catch::StartsWith("training diverged: worker 1 (worker:1): ") &&
                            Catch::Contains("w[3] is not finite at clock 0; look for NaN"));
}

TEST_CASE("on_nonfinite stop: a worker that leaves for it ends the job, and everybody is told") {
  CoordinatorFixture f(GENERATE(kSync, kAsync));
  f.StartJob();
  const auto beat = f.Heartbeat(f.members[0], f.Heartbeat(f.members[0])->reply().revision());
  f.Leave(f.members[1], false, kDiverged, v1::FAILURE_DIVERGED);
  CHECK(f.ends == 0);
  f.Leave(f.members[0], false, kDiverged, v1::FAILURE_DIVERGED);
  CHECK(f.ends == 1);
  CHECK(f.failure == kDiverged);
  CHECK(f.Join(1, 77)->status() == JobFailure(v1::FAILURE_DIVERGED, kDiverged));
  REQUIRE(beat->there());
  CHECK(beat->reply().state() == v1::FAILED);
  CHECK(beat->reply().failure() == kDiverged);
  CHECK(beat->reply().failure_kind() == v1::FAILURE_DIVERGED);
  for (const auto& shard : f.shards) {
    CHECK(shard->Sent(v1::ControlMessage::kShutdown).back().shutdown().failure() == kDiverged);
  }
}

TEST_CASE("on_nonfinite skip_worker: a worker that leaves for it is gone, and the last one ends the job") {
  CoordinatorFixture f(GENERATE(kSync, kAsync), 3);
  f.config.mutable_consistency()->set_on_nonfinite(v1::ConsistencyConfig::ON_NONFINITE_SKIP_WORKER);
  f.StartJob();
  f.Leave(f.members[1], false, kDiverged, v1::FAILURE_DIVERGED);
  CHECK(f.ends == 0);
  CHECK(f.Status().state() == v1::RUNNING);
  CHECK(f.Task("worker:1").state() == "lost");
  CHECK(f.shards[0]->Membership().members_size() == 2);
  // If no other worker is left, the job does not wait for a worker that died and may come back.
  f.Leave(f.members[0], false, "its disk is full");
  CHECK(f.ends == 0);
  f.Leave(f.members[2], false, kDiverged, v1::FAILURE_DIVERGED);
  CHECK(f.ends == 1);
  CHECK(f.failure == std::string(kDiverged) + "; that was the last worker");
}

TEST_CASE("The most that any shard refused is in the status") {
  CoordinatorFixture f(kAsync);
  f.StartJob();
  f.shards[0]->stats.set_pushes_refused(2);
  f.shards[1]->stats.set_pushes_refused(5);
  f.Run(absl::Seconds(1), f.members);
  CHECK(f.Status().pushes_refused() == 5);
}

TEST_CASE("NextRange is not for sync") {
  CoordinatorFixture f(kSync);
  f.StartJob();
  CHECK(f.NextRange(f.members[0])->status().code() == absl::StatusCode::kFailedPrecondition);
}

TEST_CASE(
    "Step and pushes in the status are of one moment, whenever the shard has said how much it has applied") {
  CoordinatorFixture f(v1::ConsistencyConfig::MODE_SYNC);
  f.train_examples = 8 * 2 * 1000;
  f.StartJob();
  f.Steps(3);
  CHECK(f.Status().step() == 3);
  CHECK(f.Status().pushes() == 6);
  f.shards[0]->stats.set_pushes_applied(6);
  f.shards[0]->stats.mutable_version()->set_count(3);
  f.Run(absl::Seconds(1), f.members);
  CHECK(f.Status().pushes() == 6);
  f.Steps(2);
  CHECK(f.Status().step() == 5);
  CHECK(f.Status().pushes() == 10);
}

}  // namespace
}  // namespace weir
