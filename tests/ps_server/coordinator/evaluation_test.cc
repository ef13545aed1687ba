// The coordinator has the ends of epochs evaluated: which member it asks, what waits meanwhile, and what it
// keeps.
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
  // The evaluation that this member is asked for. Id 0: there is none.
  v1::EvaluationOrder OrderFor(const v1::JoinReply& member) { return Heartbeat(member)->reply().evaluate(); }
  void Report(const v1::JoinReply& member, uint64_t version, uint64_t examples = 10, double loss = 0.5) {
    Report(member, version, examples, loss, OrderFor(member).id());
  }
  void Report(const v1::JoinReply& member, uint64_t version, uint64_t examples, double loss, uint64_t order) {
    v1::ReportRequest request;
    *request.mutable_caller() = CallerOf(member);
    v1::Evaluation& evaluation = *request.mutable_evaluation();
    evaluation.set_order(order);
    evaluation.set_version(version);
    evaluation.set_examples(examples);
    evaluation.set_test_loss(loss);
    evaluation.set_test_accuracy(0.75);
    auto answer = std::make_shared<Answer<v1::ReportReply>>();
    coordinator->Report(request, Keep(answer));
    answer->reply();
  }
  // Reads the weights as PullSnapshot does.
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
  // The worker of the highest rank is asked, since the first worker makes the final evaluation.
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

TEST_CASE("What a job that has failed has evaluated stays as it is") {
  Job f(v1::ConsistencyConfig::MODE_SYNC);
  f.Begin();
  f.Steps(5);
  f.Read(f.members[1], 4);
  REQUIRE(f.Commits() == 5);
  SECTION("the worker that was asked leaves") {
    f.Leave(f.members[1], /*done=*/false, "it diverged", v1::FAILURE_DIVERGED);
  }
  SECTION("it reports") {
    const uint64_t order = f.OrderFor(f.members[1]).id();
    f.Leave(f.members[0], /*done=*/false, "it diverged", v1::FAILURE_DIVERGED);
    f.Report(f.members[1], 4, 10, 0.5, order);
  }
  CHECK(f.Status().state() == v1::FAILED);
  CHECK(f.Status().evaluations_size() == 0);
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
  // The evaluator falls silent: after its lease a worker evaluates.
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

// ---- evaluations that decide how the job continues

// Like Job, but with five epochs, and workers that wait at the ends of epochs.
struct WaitingJob : Job {
  explicit WaitingJob(v1::ConsistencyConfig::Mode mode) : Job(mode) {
    config.mutable_train()->set_epochs(5);
    disk = std::make_shared<FakeDisk>();
    config.mutable_checkpoint()->set_directory("/runs/7");
    config.mutable_checkpoint()->set_every_steps(1000);
  }
  void Begin() {
    Start();
    JoinAll(1000);
  }
  void JoinAll(uint64_t instances_from) {
    own_protocol_from = instances_from;
    std::vector<AnswerPtr<v1::JoinReply>> joins;
    for (uint32_t rank = 0; rank < workers; ++rank) joins.push_back(Join(Evaluates(JoinRequest(rank))));
    members.clear();
    for (const auto& join : joins) members.push_back(join->reply());
  }
  // Commits the steps of an epoch that are still open, and has the asked member evaluate it.
  void Epoch(uint64_t epoch, double loss) {
    while (open_step < 4 * epoch) Steps(1);
    REQUIRE(OrderFor(members[1]).epoch() == epoch);
    Report(members[1], 4 * epoch, 10, loss);
  }
  std::optional<uint64_t> WorkEnd() {
    const v1::HeartbeatReply reply = Heartbeat(members[0])->reply();
    return reply.has_work_end() ? std::optional(reply.work_end()) : std::nullopt;
  }
};

TEST_CASE("sync, patience: each epoch's end waits for its result, and the last one's for the end") {
  WaitingJob f(v1::ConsistencyConfig::MODE_SYNC);
  f.config.mutable_evaluation()->set_patience(2);
  f.Begin();
  CHECK(f.members[0].work_end() == 4);
  f.Steps(5);  // by a worker that does not wait
  CHECK(f.Commits() == 4);
  CHECK(f.WorkEnd() == 4);
  f.Read(f.members[1], 4);
  CHECK(f.Commits() == 4);
  CHECK(f.Heartbeat(f.members[0])->reply().awaits_evaluation());
  f.clock.Advance(absl::Seconds(2));
  REQUIRE(f.Status().waiting_for_size() == 1);
  CHECK(f.Status().waiting_for(0) == "worker:1 to evaluate epoch 1, which decides how the job goes on");
  f.Report(f.members[1], 4);
  CHECK(f.Commits() == 5);
  CHECK(f.WorkEnd() == 8);
  CHECK_FALSE(f.Heartbeat(f.members[0])->reply().awaits_evaluation());
  SECTION("the job is stopped, and is done for who starts it again") {
    f.Epoch(2, 0.5);
    CHECK(f.Status().state() == v1::RUNNING);
    f.Epoch(3, 0.75);
    const auto check = [](const v1::ClusterStatus& status) {
      CHECK(status.state() == v1::DRAINING);
      CHECK(status.step() == 12);
      CHECK(status.total_steps() == 12);
      CHECK(status.total_examples() == 3 * 64);
      CHECK(status.stopped_early() ==
            "after epoch 3, since 2 evaluations were no better than that of epoch 1, whose test loss was 0.5 "
            "(evaluation.patience = 2)");
    };
    check(f.Status());
    CHECK(f.disk->newest->job().done());
    f.Restart();
    check(f.Status());
    SECTION("unless it has more patience then") {
      f.config.mutable_evaluation()->set_patience(3);
      f.Restart();
      f.JoinAll(2000);
      CHECK(f.Status().state() == v1::RUNNING);
      CHECK(f.Status().total_steps() == 20);
      f.open_step = 12;
      f.Epoch(4, 0.25);
      CHECK(f.Status().stopped_early() == "");
    }
  }
  SECTION("a lost server undoes the stop") {
    f.Steps(1);
    f.Checkpoint()->reply();
    f.Epoch(2, 0.5);
    f.disk->holds = true;
    f.Epoch(3, 0.5);
    CHECK(f.Status().total_steps() == 12);
    f.shards[1]->Kill();
    f.disk->holds = false;
    f.disk->Answer();
    f.Run(absl::Seconds(1));
    f.JoinAll(2000);
    CHECK(f.Status().stopped_early() == "");
    CHECK(f.Status().total_steps() == 20);
    CHECK(f.Status().step() == 6);
    f.open_step = 6;
    f.Epoch(2, 0.25);
    f.Epoch(3, 0.25);
    CHECK(f.Status().state() == v1::RUNNING);
  }
  SECTION("it ends by itself") {
    for (uint64_t epoch = 2; epoch <= 3; ++epoch) f.Epoch(epoch, 0.5 / static_cast<double>(epoch));
    f.Epoch(4, 0.5);
    while (f.open_step < 20) f.Steps(1);
    CHECK(f.Commits() == 20);
    // The result of the last epoch's end, too, is known before the workers are told to go.
    CHECK(f.Status().state() == v1::RUNNING);
    // The last two results are no improvement, but no work is left to stop.
    f.Epoch(5, 0.5);
    CHECK(f.Status().state() == v1::DRAINING);
    CHECK(f.Status().stopped_early() == "");
    REQUIRE(f.Status().evaluations_size() == 5);
    CHECK(f.Status().evaluations(4).step() == 20);
  }
}

TEST_CASE("bounded, async, patience: no batch of the next epoch is handed out before the result is known") {
  WaitingJob f(GENERATE(v1::ConsistencyConfig::MODE_BOUNDED, v1::ConsistencyConfig::MODE_ASYNC));
  f.config.mutable_evaluation()->set_patience(1);
  f.Begin();
  std::vector<uint64_t> completed;
  // Asks for the first worker's next range. The other worker has nothing to do yet.
  const auto next = [&] {
    const auto answer = f.NextRange(f.members[0], completed);
    completed.clear();
    if (answer->there() && answer->reply().has_range()) completed = {answer->reply().range().id()};
    return answer;
  };
  uint64_t batches = 0;
  AnswerPtr<v1::NextRangeReply> waits = next();
  while (waits->there()) {
    batches += waits->reply().range().batches();
    waits = next();
  }
  CHECK(batches == 8);
  REQUIRE(f.OrderFor(f.members[1]).epoch() == 1);
  f.Report(f.members[1], 8);
  REQUIRE(waits->there());
  CHECK(waits->reply().range().first_batch() == 8);
  batches = waits->reply().range().batches();
  completed = {waits->reply().range().id()};
  while ((waits = next())->there()) batches += waits->reply().range().batches();
  CHECK(batches == 8);
  f.Report(f.members[1], 16);
  REQUIRE(waits->there());
  CHECK(waits->reply().done());
  CHECK(f.Status().state() == v1::DRAINING);
  CHECK(f.Status().total_examples() == 128);
  CHECK(f.disk->newest->job().done());
  f.Restart();
  CHECK(f.Status().state() == v1::DRAINING);
  CHECK_FALSE(f.Status().stopped_early().empty());
}

TEST_CASE("keep_best: what is better than before is saved before anybody goes on") {
  WaitingJob f(v1::ConsistencyConfig::MODE_SYNC);
  f.config.mutable_evaluation()->set_keep_best(true);
  f.Begin();
  f.Epoch(1, 0.5);
  REQUIRE(f.disk->newest.has_value());
  CHECK(f.disk->newest->step() == 4);
  CHECK(f.disk->newest->job().best().checkpoint() == 4);
  CHECK(f.Status().best().evaluation().epoch() == 1);
  CHECK(f.Status().best_checkpoint() == "/runs/7/step-4");
  f.Epoch(2, 0.75);
  CHECK(f.disk->newest->step() == 4);
  f.disk->holds = true;
  f.Epoch(3, 0.25);
  CHECK(f.WorkEnd() == 12);
  CHECK(f.Heartbeat(f.members[0])->reply().awaits_evaluation());
  SECTION("it is saved") {
    f.disk->holds = false;
    f.disk->Answer();
    CHECK(f.WorkEnd() == 16);
    CHECK(f.Status().best().checkpoint() == 12);
    f.Epoch(4, 0.5);
    f.Steps(1);
    f.Checkpoint()->reply();
    CHECK(f.disk->newest->step() == 17);
    CHECK(f.disk->newest->job().best().checkpoint() == 12);
    f.Restart();
    f.JoinAll(2000);
    CHECK(f.Status().best().evaluation().epoch() == 3);
    // The last epoch is even better, so it is both the best and the last.
    f.open_step = 17;
    f.Epoch(5, 0.125);
    CHECK(f.Status().state() == v1::DRAINING);
    CHECK(f.disk->newest->job().done());
    CHECK(f.disk->newest->job().best().checkpoint() == 20);
    CHECK(f.disk->newest->job().evaluations_size() == 5);
  }
  SECTION("it cannot be saved: the one before stays, and the next better one is tried") {
    f.disk->commit_status = absl::ResourceExhaustedError("no space left");
    f.disk->holds = false;
    f.disk->Answer();
    CHECK(f.WorkEnd() == 16);
    CHECK(f.Status().best().checkpoint() == 4);
    f.disk->commit_status = absl::OkStatus();
    f.Epoch(4, 0.375);
    CHECK(f.Status().best().checkpoint() == 16);
  }
}

TEST_CASE(
    "keep_best: weights that were lost before they were saved are not taken for those of the checkpoint") {
  WaitingJob f(v1::ConsistencyConfig::MODE_SYNC);
  f.config.mutable_evaluation()->set_keep_best(true);
  f.Begin();
  f.Steps(2);
  f.Checkpoint()->reply();
  f.Steps(1);
  // From now on the store takes long to make room for a checkpoint.
  f.disk->holds = true;
  const auto current = f.Checkpoint();
  f.Epoch(1, 0.5);
  f.shards[1]->Kill();
  f.Run(absl::Seconds(1));
  f.JoinAll(2000);
  REQUIRE(f.Status().state() == v1::RUNNING);
  REQUIRE(f.Status().step() == 2);
  f.disk->holds = false;
  f.disk->Answer();
  f.Run(absl::Seconds(1), f.members);
  CHECK_FALSE(current->status().ok());
  CHECK_FALSE(f.Status().has_best());
  f.open_step = 2;
  f.Epoch(1, 0.75);
  CHECK(f.Status().best().evaluation().test_loss() == 0.75);
  CHECK(f.disk->newest->job().best().checkpoint() == 4);
}

TEST_CASE("A due checkpoint waits for the evaluation of the epoch whose end it would be of") {
  WaitingJob f(v1::ConsistencyConfig::MODE_SYNC);
  f.config.mutable_evaluation()->set_keep_best(true);
  f.config.mutable_checkpoint()->set_every_steps(4);
  f.Begin();
  f.Steps(4);
  f.Run(absl::Seconds(1), f.members);
  CHECK_FALSE(f.disk->newest.has_value());
  f.Epoch(1, 0.5);
  CHECK(f.disk->newest->step() == 4);
  CHECK(f.disk->newest->job().best().checkpoint() == 4);
  f.Run(absl::Seconds(1), f.members);
  CHECK(f.disk->commits == 1);
  // If an epoch is not better, it is saved once its evaluation is there.
  f.Steps(4);
  f.Run(absl::Seconds(1), f.members);
  CHECK(f.disk->commits == 1);
  f.Epoch(2, 0.75);
  f.Run(absl::Seconds(1), f.members);
  CHECK(f.disk->newest->step() == 8);
  CHECK(f.disk->newest->job().evaluations_size() == 2);
  CHECK(f.disk->newest->job().best().checkpoint() == 4);
}

TEST_CASE("What the newest checkpoint does not say of the same weights is saved under the next number") {
  WaitingJob f(v1::ConsistencyConfig::MODE_SYNC);
  const auto job = [&]() -> const v1::CoordinatorState& { return f.disk->newest->job(); };
  SECTION("the best epoch, from which the job goes on") {
    f.config.mutable_evaluation()->set_keep_best(true);
    f.Begin();
    f.Steps(4);
    CHECK(f.Checkpoint()->reply().step() == 4);
    CHECK_FALSE(job().has_best());
    f.Epoch(1, 0.5);
    CHECK(f.disk->newest->step() == 5);
    CHECK(job().committed_steps() == 4);
    CHECK(job().best().checkpoint() == 5);
    CHECK(job().evaluations_size() == 1);
    CHECK(f.Checkpoint()->reply().step() == 5);  // this one has all results
    f.Steps(1);
    CHECK(f.Checkpoint()->reply().step() == 6);
    CHECK(job().committed_steps() == 5);
    f.Steps(2);
    CHECK(f.Checkpoint()->reply().step() == 7);
    CHECK(f.Checkpoint()->reply().step() == 7);
    CHECK(job().best().checkpoint() == 5);
    f.Epoch(2, 0.25);
    CHECK(f.Checkpoint()->reply().step() == 8);
    CHECK(job().best().checkpoint() == 8);
  }
  SECTION("a lost server takes the job back to its step, not to its number") {
    f.config.mutable_evaluation()->set_keep_best(true);
    f.Begin();
    f.Steps(4);
    f.Checkpoint()->reply();
    f.Epoch(1, 0.5);
    f.Steps(2);
    REQUIRE(f.Status().step() == 6);
    f.shards[1]->Kill();
    CHECK(f.Status().step() == 4);
    f.Run(absl::Seconds(1));
    f.JoinAll(2000);
    CHECK(f.shards[1]->LastInstall().restore().step() == 5);
    CHECK(f.Status().state() == v1::RUNNING);
    CHECK(f.Status().step() == 4);
    f.open_step = 4;
    f.Steps(1);
    CHECK(f.Status().step() == 5);
  }
  SECTION("that the job was stopped, when the checkpoint was taken on request") {
    f.config.mutable_evaluation()->set_patience(1);
    f.Begin();
    f.Epoch(1, 0.5);
    f.Steps(4);
    CHECK(f.Checkpoint()->reply().step() == 8);
    f.Epoch(2, 0.5);
    CHECK(f.Status().state() == v1::DRAINING);
    CHECK(f.disk->newest->step() == 9);
    CHECK(job().done());
    CHECK(job().total_steps() == 8);
    f.Restart();
    CHECK(f.Status().state() == v1::DRAINING);
    CHECK_FALSE(f.Status().stopped_early().empty());
  }
  SECTION("that the job was stopped, when the checkpoint is that of the best epoch") {
    f.config.mutable_evaluation()->set_keep_best(true);
    f.config.mutable_evaluation()->set_patience(1);
    f.config.mutable_evaluation()->set_min_delta(0.1);
    f.Begin();
    f.Epoch(1, 0.5);
    f.Epoch(2, 0.46875);  // better, but not by enough
    CHECK(f.Status().state() == v1::DRAINING);
    CHECK(job().done());
    CHECK(job().best().checkpoint() == 8);
    f.Restart();
    CHECK(f.Status().state() == v1::DRAINING);
    CHECK(f.Status().best().evaluation().epoch() == 2);
  }
  SECTION("the last epoch's evaluation, without which the job is not done") {
    f.config.mutable_evaluation()->set_keep_best(true);
    f.Begin();
    for (uint64_t epoch = 1; epoch <= 4; ++epoch) f.Epoch(epoch, 0.5);
    f.Steps(4);
    CHECK(f.Checkpoint()->reply().step() == 20);
    CHECK_FALSE(job().done());
    f.Restart();
    f.JoinAll(2000);
    f.open_step = 20;
    CHECK(f.Status().state() == v1::RUNNING);
    f.Run(absl::Seconds(1), f.members);
    f.Epoch(5, 0.25);
    CHECK(f.Status().state() == v1::DRAINING);
    CHECK(f.disk->newest->step() == 21);
    CHECK(job().done());
    CHECK(job().evaluations_size() == 5);
    CHECK(job().best().checkpoint() == 21);
    f.Restart();
    CHECK(f.Status().state() == v1::DRAINING);
    CHECK(f.Status().best().evaluation().epoch() == 5);
  }
}

TEST_CASE("A worker that would not wait for an evaluation is refused where it decides") {
  WaitingJob f(v1::ConsistencyConfig::MODE_SYNC);
  f.config.mutable_evaluation()->set_patience(1);
  f.Start();
  f.own_protocol_from = 1000;
  v1::JoinRequest request = Job::Evaluates(f.JoinRequest(0));
  request.mutable_protocol()->set_minor(2);
  const auto join = f.Join(request);
  CHECK(join->status().code() == absl::StatusCode::kFailedPrecondition);
  CHECK_THAT(std::string(join->status().message()),
             Catch::Contains("speaks version 1.2") && Catch::Contains("upgrade worker:0"));
}

TEST_CASE(
    "A worker that cannot evaluate is refused where evaluations decide, and says which field wants them") {
  WaitingJob f(v1::ConsistencyConfig::MODE_SYNC);
  const char* field = "evaluation.patience";
  SECTION("patience") { f.config.mutable_evaluation()->set_patience(1); }
  SECTION("keep_best") {
    f.config.mutable_evaluation()->set_keep_best(true);
    field = "evaluation.keep_best";
  }
  f.Start();
  f.own_protocol_from = 1000;
  const auto join = f.Join(0);
  CHECK(join->status().code() == absl::StatusCode::kFailedPrecondition);
  CHECK_THAT(std::string(join->status().message()),
             Catch::StartsWith(field) && Catch::Contains("worker:0 can make none"));
  f.JoinAll(2000);
  CHECK(f.Status().state() == v1::RUNNING);
}

}  // namespace
}  // namespace weir
