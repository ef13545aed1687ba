#include "worker/evaluation.h"

#include <algorithm>
#include <chrono>
#include <functional>
#include <future>
#include <utility>

#include "catch2/catch.hpp"
#include "common/config/job_config.h"
#include "tests/worker/digits.h"
#include "tests/worker/stub_client.h"

namespace weir {
namespace {

// Runs on the evaluating thread, too, where Catch2 asserts nothing.
v1::JobConfig Config() {
  return ParseJobConfig(R"({
    "model": {"layers": [{"type": "flatten"}, {"type": "dense", "units": 10}]},
    "data": {"format": "digits", "batch_size": 32}})",
                        "test")
      .value();
}

absl::StatusOr<std::unique_ptr<Replicas>> MakeReplicas() {
  return Replicas::Create(Config(), Digits().train, {"cpu"});
}

// A client that is asked once to evaluate. Its calls come on the evaluating thread.
class EvaluatingClient final : public StubClient {
 public:
  // Called before each batch: whether the membership goes on.
  std::function<absl::Status(size_t batch)> on_batch = [](size_t) { return absl::OkStatus(); };
  size_t batches = 0;
  std::vector<EvaluationResult> reports;

  absl::StatusOr<std::optional<EvaluationOrder>> WaitEvaluation(
      std::chrono::steady_clock::time_point) override {
    if (std::exchange(ordered_, true)) return std::nullopt;
    return EvaluationOrder{5, 1};
  }
  bool draining() const override { return true; }
  Future<PullResult> PullSnapshot(std::vector<MutableTensor> tensors, std::vector<RowsToRead>) override {
    for (const MutableTensor& tensor : tensors) std::fill(tensor.values.begin(), tensor.values.end(), 0.1f);
    PullResult result;
    result.versions = {3};
    Promise<PullResult> promise;
    promise.Set(std::move(result));
    return promise.future();
  }
  absl::StatusOr<bool> WaitDraining(std::chrono::steady_clock::time_point) override {
    if (!ended_.ok()) return ended_;
    ended_ = on_batch(batches++);
    if (!ended_.ok()) return ended_;
    return true;
  }
  absl::Status Report(const PullResult&, const EvaluationResult& result) override {
    reports.push_back(result);
    return absl::OkStatus();
  }

 private:
  bool ordered_ = false;
  absl::Status ended_;
};

bool Comes(std::promise<void>& event) {
  return event.get_future().wait_for(std::chrono::seconds(20)) == std::future_status::ready;
}

const absl::Status kFenced = absl::AbortedError("fenced: ps:1 was lost");

TEST_CASE("An evaluation of an epoch that is under way is finished and reported before its member leaves") {
  EvaluatingClient client;
  std::promise<void> evaluating;
  client.on_batch = [&](size_t batch) {
    if (batch == 1) evaluating.set_value();
    return absl::OkStatus();
  };
  {
    const auto evaluator = EpochEvaluator::Start(HeldOut(Digits()), MakeReplicas, &client);
    REQUIRE(evaluator.ok());
    REQUIRE(Comes(evaluating));
  }
  REQUIRE(client.reports.size() == 1);
  CHECK(client.reports[0].order == 5);
  CHECK(client.reports[0].examples == static_cast<uint64_t>(Digits().test->size()));
}

// Digits, the training set of which stands for a validation set.
HeldOut WithValidation() {
  HeldOut sets(Digits());
  sets.validation = &Digits().train;
  return sets;
}

TEST_CASE("With a validation set epochs are evaluated by it alone") {
  EvaluatingClient client;
  std::promise<void> evaluating;
  client.on_batch = [&](size_t batch) {
    if (batch == 1) evaluating.set_value();
    return absl::OkStatus();
  };
  {
    const auto evaluator = EpochEvaluator::Start(WithValidation(), MakeReplicas, &client);
    REQUIRE(evaluator.ok());
    REQUIRE(Comes(evaluating));
  }
  REQUIRE(client.reports.size() == 1);
  CHECK(client.reports[0].validation);
  CHECK(client.reports[0].examples == static_cast<uint64_t>(Digits().train.size()));
}

TEST_CASE(
    "At the job's end the test set comes once, and last; the validation set where no epoch was that end") {
  EvaluatingClient client;
  v1::JobConfig config = Config();
  HeldOut sets = WithValidation();
  size_t reports = 2;
  SECTION("epochs decide nothing") {}
  SECTION("patience: the end was an epoch's, evaluated already") {
    config.mutable_evaluation()->set_patience(2);
    reports = 1;
  }
  SECTION("without a validation set") {
    sets = HeldOut(Digits());
    reports = 1;
  }
  const auto replicas = MakeReplicas();
  REQUIRE(replicas.ok());
  REQUIRE(EvaluateEnd(config, sets, &(*replicas)->model(), &client).ok());
  REQUIRE(client.reports.size() == reports);
  if (reports == 2) {
    CHECK(client.reports[0].validation);
    CHECK_FALSE(client.reports[0].final);
    CHECK(client.reports[0].examples == static_cast<uint64_t>(Digits().train.size()));
  }
  const EvaluationResult& last = client.reports.back();
  CHECK(last.final);
  CHECK_FALSE(last.validation);
  CHECK(last.examples == static_cast<uint64_t>(Digits().test->size()));
  CHECK(last.weights_sha256.size() == 64);
  CHECK(client.reports[0].weights_sha256 == last.weights_sha256);
}

TEST_CASE("An evaluation that is abandoned ends at its next batch, and is not reported") {
  EvaluatingClient client;
  std::promise<void> evaluating, abandoned;
  client.on_batch = [&](size_t batch) {
    if (batch == 1) {
      evaluating.set_value();
      abandoned.get_future().wait();
    }
    return absl::OkStatus();
  };
  {
    const auto evaluator = EpochEvaluator::Start(HeldOut(Digits()), MakeReplicas, &client);
    REQUIRE(evaluator.ok());
    REQUIRE(Comes(evaluating));
    (*evaluator)->Abandon();
    abandoned.set_value();
  }
  CHECK(client.reports.empty());
  CHECK(client.batches == 2);
}

TEST_CASE("Who is fenced during an evaluation ends it at its next batch, and does not report it") {
  EvaluatingClient client;
  std::promise<void> fenced;
  client.on_batch = [&](size_t batch) {
    if (batch == 1) fenced.set_value();
    return batch == 1 ? kFenced : absl::OkStatus();
  };
  SECTION("of an epoch") {
    const auto evaluator = EpochEvaluator::Start(HeldOut(Digits()), MakeReplicas, &client);
    REQUIRE(evaluator.ok());
    REQUIRE(Comes(fenced));
  }
  SECTION("at the job's end") {
    const auto replicas = MakeReplicas();
    REQUIRE(replicas.ok());
    CHECK(EvaluateEnd(Config(), HeldOut(Digits()), &(*replicas)->model(), &client) == kFenced);
  }
  CHECK(client.reports.empty());
  CHECK(client.batches == 2);
}

}  // namespace
}  // namespace weir
