// A job that a worker or train.max_seconds ends before all of its examples are done.
#include <string>
#include <vector>

#include "catch2/catch.hpp"
#include "tests/ps_server/coordinator/coordinator_fixture.h"

namespace weir {
namespace {

using Catch::Contains;
constexpr auto kSync = v1::ConsistencyConfig::MODE_SYNC;
constexpr auto kAsync = v1::ConsistencyConfig::MODE_ASYNC;

// 20 steps of two parts, or 40 batches.
struct Job : CoordinatorFixture {
  explicit Job(v1::ConsistencyConfig::Mode mode) : CoordinatorFixture(mode) {
    train_examples = 8 * 2 * 20;
    disk = std::make_shared<FakeDisk>();
  }
  absl::Status Stop(const v1::JoinReply& member, const std::string& reason) {
    v1::StopRequest request;
    *request.mutable_caller() = CallerOf(member);
    request.set_reason(reason);
    auto answer = std::make_shared<Answer<v1::StopReply>>();
    coordinator->Stop(request, Keep(answer));
    return answer->status();
  }
  // The member's next heartbeat, after an answer that told it the newest.
  void Know(const v1::JoinReply& member) { Heartbeat(member, Heartbeat(member)->reply().revision()); }
  void JoinAgain(uint64_t instance) {
    std::vector<AnswerPtr<v1::JoinReply>> joins;
    for (uint32_t rank = 0; rank < workers; ++rank) joins.push_back(Join(rank, instance + rank));
    members.clear();
    for (const auto& join : joins) members.push_back(join->reply());
  }
  size_t Commits() const { return shards[0]->Sent(v1::ControlMessage::kCommit).size(); }
};

TEST_CASE("sync: the open step is the last one, and commits when every worker knows that") {
  Job f(kSync);
  f.StartJob();
  f.Steps(3);
  CHECK(f.Stop(f.members[1], "good enough") == absl::OkStatus());
  CHECK(f.Status().stopped_early() == "since worker:1 asked for it: good enough");
  CHECK(f.Status().state() == v1::RUNNING);
  CHECK(f.Heartbeat(f.members[0])->reply().work_end() == 4);
  f.Steps(1);
  CHECK(f.Commits() == 3);
  f.Know(f.members[0]);
  CHECK(f.Commits() == 3);
  // A second stop changes nothing.
  CHECK(f.Stop(f.members[0], "another reason") == absl::OkStatus());
  f.Know(f.members[1]);
  CHECK(f.Commits() == 4);
  const auto check = [](const v1::ClusterStatus& status) {
    CHECK(status.state() == v1::DRAINING);
    CHECK(status.step() == 4);
    CHECK(status.total_steps() == 4);
    CHECK(status.total_examples() == 4 * 16);
  };
  check(f.Status());
  CHECK(f.Status().stopped_early() == "since worker:1 asked for it: good enough");
  CHECK(f.disk->newest->job().done());
  CHECK(f.disk->newest->job().committed_steps() == 4);
  // Nor does a stop at the end.
  CHECK(f.Stop(f.members[0], "too late") == absl::OkStatus());
  SECTION("it is done") {
    for (const auto& member : f.members) f.Leave(member);
    f.Run(absl::Seconds(1));
    CHECK(f.ends == 1);
    CHECK(f.failure == "");
    CHECK(f.final_status.stopped_early() == "since worker:1 asked for it: good enough");
  }
  SECTION("it is done for who starts it again, unless its length or limit is another one") {
    const bool earlier = GENERATE(false, true);
    if (earlier) f.disk->newest->mutable_job()->clear_stop_reason();  // of format 1.5
    f.Restart();
    check(f.Status());
    CHECK(f.Status().stopped_early() ==
          (earlier ? "since a worker or train.max_seconds ended it, in an earlier run"
                   : "since worker:1 asked for it: good enough"));
    if (GENERATE(true, false)) {
      f.config.mutable_train()->set_max_seconds(1000);
    } else {
      f.config.mutable_train()->set_epochs(2);
    }
    f.Restart();
    f.JoinAgain(2000);
    CHECK(f.Status().state() == v1::RUNNING);
    CHECK(f.Status().step() == 4);
    CHECK(f.Status().total_steps() == (f.config.train().epochs() == 2 ? 40 : 20));
    CHECK(f.Status().stopped_early() == "");
  }
}

TEST_CASE("sync: a server that is lost meanwhile changes neither the end nor what the servers are told") {
  Job f(kSync);
  f.StartJob();
  f.Steps(2);
  f.Checkpoint()->reply();
  f.Steps(3);
  CHECK(f.Stop(f.members[0], "enough") == absl::OkStatus());
  const bool drains = GENERATE(false, true);
  if (drains) {
    f.disk->holds = true;
    for (const auto& member : f.members) f.Know(member);
    f.Steps(1);
    CHECK(f.Status().state() == v1::DRAINING);
  }
  f.shards[1]->Kill();
  f.disk->holds = false;
  f.disk->Answer();
  f.Run(absl::Seconds(1));
  f.JoinAgain(2000);
  CHECK(f.Status().state() == v1::RUNNING);
  CHECK(f.Status().step() == 2);
  // A schedule may depend on the whole job's length.
  CHECK(f.shards[1]->LastInstall().total_steps() == 20);
  CHECK(f.members[0].total_steps() == 20);
  CHECK(f.members[0].work_end() == 6);
  for (const auto& member : f.members) f.Know(member);
  f.open_step = 2;
  f.Steps(3);
  CHECK(f.Status().state() == v1::RUNNING);
  f.Steps(1);
  CHECK(f.Status().state() == v1::DRAINING);
  CHECK(f.Status().step() == 6);
  CHECK(f.Status().stopped_early() == "since worker:0 asked for it: enough");
}

TEST_CASE("sync: a worker that dies before it knows holds nothing up") {
  Job f(kSync);
  f.StartJob();
  f.Steps(1);
  CHECK(f.Stop(f.members[0], "enough") == absl::OkStatus());
  f.Know(f.members[0]);
  f.Steps(1);
  CHECK(f.Commits() == 1);
  f.Leave(f.members[1], /*done=*/false, "it crashed");
  f.Know(f.members[0]);
  CHECK(f.Commits() == 2);
  CHECK(f.Status().state() == v1::DRAINING);
}

TEST_CASE("A job that ends anyway is not stopped early") {
  Job f(kSync);
  f.StartJob();
  f.Steps(19);
  CHECK(f.Stop(f.members[0], "enough") == absl::OkStatus());
  f.Steps(1);
  CHECK(f.Status().state() == v1::DRAINING);
  CHECK(f.Status().stopped_early() == "");
}

TEST_CASE("sync: an epoch that ends with a stopped job has the final result, and later ones have none") {
  Job f(kSync);
  f.config.mutable_train()->set_epochs(3);
  f.train_examples = 64;  // an epoch has 4 steps
  f.config.mutable_evaluation()->set_every_epochs(1);
  f.Start();
  std::vector<AnswerPtr<v1::JoinReply>> joins;
  for (uint32_t rank = 0; rank < 2; ++rank) {
    v1::JoinRequest request = f.JoinRequest(rank);
    request.set_evaluates(true);
    joins.push_back(f.Join(request));
  }
  for (const auto& join : joins) f.members.push_back(join->reply());
  const int steps = GENERATE(2, 3);
  f.Steps(steps);
  CHECK(f.Stop(f.members[0], "enough") == absl::OkStatus());
  for (const auto& member : f.members) f.Know(member);
  f.Steps(1);
  CHECK(f.Status().state() == v1::DRAINING);
  v1::ReportRequest report;
  *report.mutable_caller() = f.CallerOf(f.members[0]);
  report.mutable_evaluation()->set_examples(10);
  report.mutable_evaluation()->set_test_loss(0.5);
  report.mutable_evaluation()->set_final(true);
  f.coordinator->Report(report, [](const absl::StatusOr<v1::ReportReply>&) {});
  REQUIRE(f.Status().evaluations_size() == (steps == 3 ? 1 : 0));
  if (steps == 3) CHECK(f.Status().evaluations(0).test_loss() == 0.5);
}

TEST_CASE("async: each worker does the range that it has, and no other is handed out") {
  Job f(kAsync);
  f.StartJob();
  auto a = f.NextRange(f.members[0]), b = f.NextRange(f.members[1]);
  const uint64_t held = a->reply().range().batches() + b->reply().range().batches();
  CHECK(f.Stop(f.members[0], "enough") == absl::OkStatus());
  a = f.NextRange(f.members[0], {a->reply().range().id()});
  CHECK_FALSE(a->there());
  CHECK(f.Status().state() == v1::RUNNING);
  SECTION("until all are done") {
    b = f.NextRange(f.members[1], {b->reply().range().id()});
    REQUIRE(b->there());
    CHECK(b->reply().done());
    CHECK(f.Status().total_examples() == held * 8);
  }
  SECTION("a dead one's is left undone") {
    f.Leave(f.members[1], /*done=*/false, "it crashed");
    f.Run(absl::Seconds(0.25), {f.members[0]});
    CHECK(f.Status().total_examples() == held / 2 * 8);
  }
  REQUIRE(a->there());
  CHECK(a->reply().done());
  CHECK(f.Status().state() == v1::DRAINING);
  CHECK(f.Status().stopped_early() == "since worker:0 asked for it: enough");
  f.Restart();
  CHECK(f.Status().state() == v1::DRAINING);
}

TEST_CASE("train.max_seconds counts training since ps:0 was started") {
  Job f(kSync);
  f.config.mutable_train()->set_max_seconds(30);
  f.Start();
  f.Run(absl::Seconds(40));  // nobody trains yet
  f.JoinAgain(1000);
  f.Run(absl::Seconds(29), f.members);
  f.Steps(1);
  CHECK(f.Status().stopped_early() == "");
  f.Run(absl::Seconds(1), f.members);
  CHECK(f.Status().stopped_early() == "since it has taken train.max_seconds = 30");
  for (const auto& member : f.members) f.Know(member);
  f.Steps(1);
  CHECK(f.Status().state() == v1::DRAINING);
  CHECK(f.Status().step() == 2);
}

TEST_CASE("A stop needs a reason, and a worker of a job that has begun") {
  Job f(kSync);
  f.StartJob();
  const auto reader = f.JoinReader()->reply();
  CHECK(f.Stop(reader, "enough") == absl::FailedPreconditionError("a reader cannot stop the job"));
  for (const std::string& reason : {std::string(), std::string(1001, 'x')}) {
    const absl::Status refused = f.Stop(f.members[0], reason);
    CHECK(refused.code() == absl::StatusCode::kInvalidArgument);
    CHECK_THAT(std::string(refused.message()),
               Contains("reason: must be 1 to 1000 bytes; got " + std::to_string(reason.size())));
  }
  v1::JoinReply stranger = f.members[0];
  stranger.set_incarnation(999);
  CHECK(f.Stop(stranger, "enough").code() == absl::StatusCode::kAborted);
  CHECK(f.Status().stopped_early() == "");
  CHECK(f.Stop(f.members[0], std::string(1000, 'x')) == absl::OkStatus());
}

}  // namespace
}  // namespace weir
