#include "ps_server/coordinator/progress/job_meter.h"

#include <catch2/catch.hpp>
#include <optional>
#include <vector>

namespace weir {
namespace {

const absl::Time kStart = absl::FromUnixSeconds(1000);

v1::ClusterStatus Describe(const JobMeter& meter, v1::JobState state, uint64_t examples, int second,
                           bool whole = false) {
  v1::ClusterStatus status;
  status.set_state(state);
  status.set_examples(examples);
  meter.Describe(kStart + absl::Seconds(second), whole, &status);
  return status;
}

v1::WorkerReport Report(uint64_t examples, double loss_sum) {
  v1::WorkerReport report;
  report.set_examples(examples);
  report.set_loss_sum(loss_sum);
  return report;
}

std::optional<double> TrainLoss(const JobMeter& meter, bool whole = false) {
  const v1::ClusterStatus status = Describe(meter, v1::RUNNING, 0, 0, whole);
  return status.has_train_loss() ? std::optional(status.train_loss()) : std::nullopt;
}

TEST_CASE("Time and speed count from the first start, without the examples that were done before") {
  JobMeter meter;
  CHECK(Describe(meter, v1::STARTING, 0, 5).seconds() == 0);
  meter.OnStart(kStart, 100);
  meter.OnStart(kStart + absl::Seconds(8), 200);
  const v1::ClusterStatus status = Describe(meter, v1::RUNNING, 150, 10);
  CHECK(status.seconds() == 10);
  CHECK(status.examples_per_second() == 5);
}

TEST_CASE("Time stops at the end, and goes on if that was not the end") {
  JobMeter meter;
  meter.OnStart(kStart, 0);
  meter.OnEnd(kStart + absl::Seconds(4));
  meter.OnEnd(kStart + absl::Seconds(6));
  CHECK(Describe(meter, v1::DONE, 8, 20).seconds() == 4);
  CHECK(Describe(meter, v1::DONE, 8, 20).examples_per_second() == 2);
  meter.OnMore();
  CHECK(Describe(meter, v1::RECOVERING, 8, 20).seconds() == 20);
  meter.EndAtStart();
  CHECK(Describe(meter, v1::DRAINING, 8, 20).seconds() == 0);
}

TEST_CASE("While training runs the speed is that of the last seconds") {
  JobMeter meter;
  meter.SetTrainExamples(100);
  meter.OnStart(kStart, 0);
  meter.Sample(kStart + absl::Seconds(100), 1000, /*running=*/true);
  meter.Sample(kStart + absl::Seconds(101), 1050, /*running=*/true);
  meter.Sample(kStart + absl::Seconds(102), 1050, /*running=*/false);
  CHECK(Describe(meter, v1::RUNNING, 1050, 102).examples_per_second() == 50);
  CHECK(Describe(meter, v1::DONE, 1020, 102).examples_per_second() == 10);
}

TEST_CASE("The loss is what the workers report, and is forgotten with the training set") {
  JobMeter meter;
  meter.OnReport(1, Report(10, 20));
  meter.Sample(kStart, 10, true);
  CHECK_FALSE(Describe(meter, v1::RUNNING, 10, 1).has_train_loss());
  CHECK(meter.LossCurve().empty());
  meter.SetTrainExamples(100);
  meter.OnReport(1, Report(10, 20));
  meter.Sample(kStart, 10, true);
  CHECK(Describe(meter, v1::RUNNING, 10, 1).train_loss() == 2);
  REQUIRE(meter.LossCurve().size() == 1);
  CHECK(meter.LossCurve()[0].examples() == 10);
  v1::WorkerReport last = Report(20, 30);
  last.set_last_examples(4);
  last.set_last_loss_sum(2);
  meter.OnReport(1, last);
  CHECK(Describe(meter, v1::RUNNING, 20, 1).train_loss() == 1.5);
  CHECK(Describe(meter, v1::DONE, 20, 1, /*whole=*/true).train_loss() == 0.5);
  meter.SetTrainExamples(0);
  CHECK_FALSE(Describe(meter, v1::RUNNING, 20, 1).has_train_loss());
}

// ---- the loss and the speed, from reports

TEST_CASE("Before any report there is no loss and no speed") {
  JobMeter meter;
  meter.SetTrainExamples(100);
  CHECK_FALSE(TrainLoss(meter).has_value());
  CHECK(Describe(meter, v1::RUNNING, 0, 0).examples_per_second() == 0);
  meter.OnReport(1, Report(0, 0));
  meter.Sample(absl::UnixEpoch(), 5, /*running=*/true);
  meter.Sample(absl::UnixEpoch(), 9, /*running=*/true);
  CHECK_FALSE(TrainLoss(meter).has_value());
  CHECK(Describe(meter, v1::RUNNING, 0, 0).examples_per_second() == 0);
}

TEST_CASE("The loss is the mean over examples, of all workers, over about the window") {
  JobMeter meter;
  meter.SetTrainExamples(100);
  meter.OnReport(1, Report(50, 100));
  meter.OnReport(2, Report(50, 300));
  CHECK(TrainLoss(meter).value() == Approx(4));
  // Old examples leave the window.
  for (int i = 1; i <= 10; ++i) meter.OnReport(1, Report(50 + 50 * i, 100 + 50 * i));
  CHECK(TrainLoss(meter).value() == Approx(1));
}

TEST_CASE("A repeated or late report counts nothing twice; a new incarnation counts from zero") {
  JobMeter meter;
  meter.SetTrainExamples(1000);
  meter.OnReport(1, Report(50, 100));
  meter.OnReport(1, Report(50, 100));
  meter.OnReport(1, Report(20, 999));
  CHECK(TrainLoss(meter).value() == Approx(2));
  meter.OnReport(2, Report(50, 200));
  CHECK(TrainLoss(meter).value() == Approx(3));
}

TEST_CASE("The loss of the last epoch is the same in whatever order, and by however many, it was computed") {
  // The losses are rounded as workers round them.
  std::vector<float> losses;
  for (int i = 0; i < 1000; ++i) losses.push_back(0.1f + 1.0f / static_cast<float>(3 + i % 97));
  const auto loss = [&](size_t workers, bool backwards) {
    JobMeter meter;
    meter.SetTrainExamples(100);
    CHECK_FALSE(TrainLoss(meter).has_value());
    std::vector<v1::WorkerReport> reports(workers);
    for (size_t i = 0; i < losses.size(); ++i) {
      v1::WorkerReport& report = reports[i % workers];
      report.set_examples(report.examples() + 4);
      report.set_last_examples(report.last_examples() + 4);
      report.set_last_loss_sum(report.last_loss_sum() + losses[backwards ? losses.size() - 1 - i : i]);
    }
    for (size_t worker = 0; worker < workers; ++worker) meter.OnReport(worker + 1, reports[worker]);
    return TrainLoss(meter, /*whole=*/true);
  };
  const std::optional<double> one = loss(1, false);
  REQUIRE(one.has_value());
  CHECK(*one == Approx(0.03).epsilon(0.2));
  for (const size_t workers : {1, 2, 3, 7}) {
    CHECK(loss(workers, false) == one);
    CHECK(loss(workers, true) == one);
  }
}

TEST_CASE("The speed is over the last seconds") {
  JobMeter meter;
  meter.SetTrainExamples(100);
  absl::Time time = absl::UnixEpoch();
  uint64_t examples = 0;
  for (int i = 0; i < 20; ++i) meter.Sample(time += absl::Seconds(1), examples += 10, /*running=*/true);
  CHECK(Describe(meter, v1::RUNNING, 0, 0).examples_per_second() == Approx(10));
  for (int i = 0; i < 20; ++i) meter.Sample(time += absl::Seconds(1), examples += 300, /*running=*/true);
  CHECK(Describe(meter, v1::RUNNING, 0, 0).examples_per_second() == Approx(300));
}

}  // namespace
}  // namespace weir
