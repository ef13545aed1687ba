#include "ps_server/coordinator/progress/job_meter.h"

#include <catch2/catch.hpp>

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

}  // namespace
}  // namespace weir
