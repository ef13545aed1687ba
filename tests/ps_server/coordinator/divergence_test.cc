// train.divergence: ps:0 decides from the losses that all workers report.
#include <string>
#include <vector>

#include "catch2/catch.hpp"
#include "common/protocol/limits.h"
#include "tests/ps_server/coordinator/coordinator_fixture.h"

namespace weir {
namespace {

using Catch::Contains;
constexpr auto kSync = v1::ConsistencyConfig::MODE_SYNC;
constexpr auto kAsync = v1::ConsistencyConfig::MODE_ASYNC;

// Windows with these mean losses; the first is number `number`.
v1::WorkerReport Losses(uint64_t number, const std::vector<double>& losses) {
  v1::WorkerReport report;
  for (const double loss : losses) {
    v1::LossWindow& window = *report.add_loss_windows();
    window.set_number(number++);
    window.set_batches(kLossWindow);
    window.set_examples(kLossWindow);
    window.set_loss_sum(loss * static_cast<double>(kLossWindow));
    window.set_clock(number * kLossWindow);
  }
  return report;
}

struct Diverging : CoordinatorFixture {
  explicit Diverging(v1::ConsistencyConfig::Mode mode = kAsync) : CoordinatorFixture(mode) {
    train_examples = 8 * 2 * 20;
    config.mutable_train()->set_divergence(10);
  }
  AnswerPtr<v1::HeartbeatReply> Report(const v1::JoinReply& member, uint64_t number,
                                       const std::vector<double>& losses) {
    v1::HeartbeatRequest request;
    *request.mutable_caller() = CallerOf(member);
    *request.mutable_report() = Losses(number, losses);
    auto answer = std::make_shared<Answer<v1::HeartbeatReply>>();
    coordinator->Heartbeat(request, Keep(answer));
    return answer;
  }
  void CheckDiverged(uint32_t worker, const std::string& what) {
    CHECK(Status().state() == v1::FAILED);
    CHECK_THAT(Status().failure(),
               Contains("training diverged: worker " + std::to_string(worker) + ": " + what) &&
                   Contains(" (train.divergence = 10) at clock ") &&
                   Contains("; try a lower optimizer.learning_rate"));
    CHECK(Status().failure_kind() == v1::FAILURE_DIVERGED);
  }
};

TEST_CASE("losses that diverge end the job, and each worker hears why") {
  Diverging f;
  f.config.mutable_consistency()->set_on_nonfinite(GENERATE(v1::ConsistencyConfig::ON_NONFINITE_STOP,
                                                            v1::ConsistencyConfig::ON_NONFINITE_SKIP_WORKER,
                                                            v1::ConsistencyConfig::ON_NONFINITE_REJECT));
  f.StartJob();
  f.Report(f.members[0], 1, {2, 1});
  CHECK(f.Status().state() == v1::RUNNING);
  const auto reply = f.Report(f.members[1], 1, {1.5, 1, 15})->reply();
  f.CheckDiverged(1, "the mean loss of the last 50 batches is 15, the lowest before was 1");
  CHECK(reply.state() == v1::FAILED);
  CHECK(reply.failure_kind() == v1::FAILURE_DIVERGED);
  CHECK(reply.failure() == f.Status().failure());
  for (const auto& member : f.members) f.Beat(member);
  CHECK(f.ends == 1);
  CHECK(f.failure_kind == v1::FAILURE_DIVERGED);
}

TEST_CASE(
    "a worker that leaves since all is done, and whose last losses diverge, does not leave with success") {
  Diverging f(kSync);
  f.StartJob();
  f.Steps(20);
  CHECK(f.Status().state() == v1::DRAINING);
  v1::LeaveRequest request;
  *request.mutable_caller() = f.CallerOf(f.members[0]);
  request.set_done(true);
  *request.mutable_report() = Losses(1, {1, 30});
  auto answer = std::make_shared<Answer<v1::LeaveReply>>();
  f.coordinator->Leave(request, Keep(answer));
  CHECK(answer->status().code() == absl::StatusCode::kInternal);
  CHECK_THAT(std::string(answer->status().message()), Contains("training diverged: worker 0: "));
  f.CheckDiverged(0, "the mean loss");
  f.Beat(f.members[1]);
  CHECK(f.ends == 1);
}

TEST_CASE("a worker that joins again is judged by the job's beginning") {
  Diverging f;
  f.StartJob();
  f.Report(f.members[0], 1, {2, 0});
  f.Report(f.members[1], 1, {2, 0});
  f.Leave(f.members[1], /*done=*/false, "stopped");
  const v1::JoinReply again = f.Join(1, 77)->reply();
  f.Report(again, 1, {0, 1.9, 0, 1.9});
  CHECK(f.Status().state() == v1::RUNNING);
  f.Report(again, 5, {2.1});
  f.CheckDiverged(1, "the mean loss of the last 50 batches is 2.1, the lowest before was 0");
}

TEST_CASE("the history of losses is in the checkpoint: a job that is started again has its beginning") {
  Diverging f(kSync);
  f.disk = std::make_shared<FakeDisk>();
  f.StartJob();
  f.Report(f.members[0], 1, {5, 0.2});
  f.Steps(3);
  f.Checkpoint()->reply();
  f.Restart();
  f.open_step = 3;
  const auto first = f.Join(0, 5000), second = f.Join(1, 5001);
  f.Report(first->reply(), 1, {0.3, 4});
  CHECK(f.Status().state() == v1::RUNNING);
  f.Report(second->reply(), 1, {6});
  f.CheckDiverged(1, "the mean loss of the last 50 batches is 6, the lowest before was 0.2");
}

TEST_CASE("the history of losses goes back with the job") {
  Diverging f(kSync);
  f.disk = std::make_shared<FakeDisk>();
  f.StartJob();
  f.Report(f.members[0], 1, {5, 4});
  f.Steps(3);
  f.Checkpoint()->reply();
  f.Report(f.members[0], 3, {0.2});
  f.shards[1]->Kill();
  f.Run(absl::Seconds(1));
  const auto first = f.Join(0, 5000), second = f.Join(1, 5001);
  REQUIRE(f.Status().state() == v1::RUNNING);
  // This is 30 times the lowest loss that was undone.
  f.Report(first->reply(), 1, {6});
  CHECK(f.Status().state() == v1::RUNNING);
  f.Report(second->reply(), 1, {41});
  f.CheckDiverged(1, "the mean loss of the last 50 batches is 41, the lowest before was 4");
}

}  // namespace
}  // namespace weir
