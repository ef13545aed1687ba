// The ends of epochs, as a coordinator has them evaluated: whom it asks, what waits meanwhile, what is kept.
#include "catch2/catch.hpp"
#include "tests/ps_server/coordinator/coordinator_fixture.h"

namespace weir {
namespace {

// Three epochs of 4 steps or 8 batches each, and workers that evaluate.
struct Job : CoordinatorFixture {
  explicit Job(v1::ConsistencyConfig::Mode mode) : CoordinatorFixture(mode) {
    config.mutable_train()->set_epochs(3);
  }
  void Begin() {
    Start();
    std::vector<AnswerPtr<v1::JoinReply>> joins;
    for (uint32_t rank = 0; rank < workers; ++rank) joins.push_back(Join(Evaluates(JoinRequest(rank))));
    for (const auto& join : joins) members.push_back(join->reply());
  }
  static v1::JoinRequest Evaluates(v1::JoinRequest request) {
    request.set_evaluates(true);
    return request;
  }
  // What this member is asked for. 0: nothing.
  v1::EvaluationOrder OrderFor(const v1::JoinReply& member) { return Heartbeat(member)->reply().evaluate(); }
  void Report(const v1::JoinReply& member, uint64_t version, uint64_t examples = 10) {
    v1::ReportRequest request;
    *request.mutable_caller() = CallerOf(member);
    v1::Evaluation& evaluation = *request.mutable_evaluation();
    evaluation.set_order(OrderFor(member).id());
    evaluation.set_version(version);
    evaluation.set_examples(examples);
    evaluation.set_test_loss(0.5);
    evaluation.set_test_accuracy(0.75);
    auto answer = std::make_shared<Answer<v1::ReportReply>>();
    coordinator->Report(request, Keep(answer));
    answer->reply();
  }
  // As PullSnapshot does it.
  void Read(const v1::JoinReply& member, uint64_t version) {
    for (auto& shard : shards) shard->answers_pins = false;
    auto pin = PinOf(member);
    for (auto& shard : shards) {
      shard->Pinned(shard->Sent(v1::ControlMessage::kPin).back().pin().pin(), version);
    }
    Unpin(member, pin->reply().pin());
  }
  size_t Commits() const { return shards[0]->Sent(v1::ControlMessage::kCommit).size(); }
};

TEST_CASE(
    "sync: the step after an epoch's end waits until its weights are read, not until they are evaluated") {
  Job f(v1::ConsistencyConfig::MODE_SYNC);
  f.Begin();
  f.Steps(3);
  CHECK(f.OrderFor(f.members[1]).id() == 0);
  f.Steps(2);
  CHECK(f.Commits() == 4);
  // The worker of highest rank; the first makes the final evaluation.
  CHECK(f.OrderFor(f.members[0]).id() == 0);
  CHECK(f.OrderFor(f.members[1]).epoch() == 1);
  f.Read(f.members[0], 4);
  CHECK(f.Commits() == 4);
  CHECK(f.Status().waiting_for_size() == 0);
  f.clock.Advance(absl::Seconds(1));
  REQUIRE(f.Status().waiting_for_size() == 1);
  CHECK(f.Status().waiting_for(0) == "worker:1 to read the weights of epoch 1, to evaluate them");
  f.Read(f.members[1], 4);
  CHECK(f.Commits() == 5);
  f.Report(f.members[1], 4);
  CHECK(f.OrderFor(f.members[1]).id() == 0);
  const v1::ClusterStatus status = f.Status();
  REQUIRE(status.evaluations_size() == 1);
  CHECK(status.evaluations(0).epoch() == 1);
  CHECK(status.evaluations(0).step() == 4);
  CHECK(status.evaluations(0).test_loss() == 0.5);
  CHECK(status.evaluation().test_accuracy() == 0.75);
}

TEST_CASE("sync: if whoever is asked dies, another one evaluates the same step") {
  Job f(v1::ConsistencyConfig::MODE_SYNC);
  f.Begin();
  f.Steps(5);
  REQUIRE(f.Commits() == 4);
  f.Leave(f.members[1], /*done=*/false, "it was killed");
  CHECK(f.Commits() == 4);
  REQUIRE(f.OrderFor(f.members[0]).epoch() == 1);
  f.Read(f.members[0], 4);
  CHECK(f.Commits() == 5);
  f.Report(f.members[0], 4);
  CHECK(f.Status().evaluations(0).step() == 4);
}

TEST_CASE("sync: without anybody who can evaluate nothing waits, and there is no number") {
  Job f(v1::ConsistencyConfig::MODE_SYNC);
  SECTION("none ever could") {
    f.StartJob();
    f.Steps(5);
    CHECK(f.Commits() == 5);
    CHECK(f.Status().evaluations_size() == 0);
  }
  SECTION("all have tried") {
    f.Begin();
    f.Steps(5);
    f.Report(f.members[1], 0, /*examples=*/0);
    CHECK(f.Commits() == 4);
    f.Report(f.members[0], 0, /*examples=*/0);
    CHECK(f.Commits() == 5);
    REQUIRE(f.Status().evaluations_size() == 1);
    CHECK_FALSE(f.Status().evaluations(0).has_step());
    CHECK_FALSE(f.Status().evaluations(0).has_test_loss());
  }
  SECTION("it died when a further step was made") {
    f.Begin();
    f.Steps(5);
    f.Read(f.members[1], 4);
    REQUIRE(f.Commits() == 5);
    f.Leave(f.members[1], /*done=*/false, "it was killed");
    CHECK(f.OrderFor(f.members[0]).id() == 0);
    REQUIRE(f.Status().evaluations_size() == 1);
    CHECK_FALSE(f.Status().evaluations(0).has_step());
  }
}

TEST_CASE("An evaluator is asked before any worker") {
  Job f(v1::ConsistencyConfig::MODE_SYNC);
  f.Begin();
  v1::JoinRequest request = Job::Evaluates(f.JoinRequest(0, 9000));
  request.set_role(v1::READER);
  request.set_task("evaluator:0");
  const v1::JoinReply evaluator = f.Join(request)->reply();
  f.Steps(5);
  CHECK(f.OrderFor(f.members[1]).id() == 0);
  REQUIRE(f.OrderFor(evaluator).epoch() == 1);
  // It falls silent: its lease, and then a worker does it.
  f.Run(absl::Seconds(11), f.members);
  REQUIRE(f.OrderFor(f.members[1]).epoch() == 1);
  f.Read(f.members[1], 4);
  CHECK(f.Commits() == 5);
}

TEST_CASE(
    "bounded, async: an epoch is over when its ranges are reported, and nobody waits for its evaluation") {
  Job f(GENERATE(v1::ConsistencyConfig::MODE_BOUNDED, v1::ConsistencyConfig::MODE_ASYNC));
  f.Begin();
  uint64_t batches = 0;
  std::vector<uint64_t> completed;
  while (batches < 8) {
    const v1::Range range = f.NextRange(f.members[0], completed)->reply().range();
    REQUIRE(range.batches() > 0);
    completed = {range.id()};
    batches += range.batches();
    if (batches < 8) CHECK(f.OrderFor(f.members[1]).id() == 0);
  }
  CHECK(f.OrderFor(f.members[1]).id() == 0);
  CHECK(f.NextRange(f.members[0], completed)->reply().has_range());
  REQUIRE(f.OrderFor(f.members[1]).epoch() == 1);
  f.Report(f.members[1], 9);
  REQUIRE(f.Status().evaluations_size() == 1);
  CHECK(f.Status().evaluations(0).step() == 4);  // version / workers
}

TEST_CASE("What was evaluated is in the checkpoint, and there after a restart of ps:0") {
  Job f(v1::ConsistencyConfig::MODE_SYNC);
  f.disk = std::make_shared<FakeDisk>();
  f.config.mutable_checkpoint()->set_every_steps(1000);
  f.Begin();
  f.Steps(4);
  f.Read(f.members[1], 4);
  f.Report(f.members[1], 4);
  f.Steps(2);
  f.Checkpoint()->reply();
  f.Restart();
  f.Join(Job::Evaluates(f.JoinRequest(0, 2000)));
  f.Join(Job::Evaluates(f.JoinRequest(1, 2001)));
  REQUIRE(f.Status().step() == 6);
  REQUIRE(f.Status().evaluations_size() == 1);
  CHECK(f.Status().evaluations(0).step() == 4);
  CHECK(f.Status().evaluations(0).test_accuracy() == 0.75);
}

}  // namespace
}  // namespace weir
