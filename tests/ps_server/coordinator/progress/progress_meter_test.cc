#include <vector>

#include "catch2/catch.hpp"
#include "ps_server/coordinator/progress/job_meter.h"

namespace weir {
namespace {

v1::WorkerReport Of(uint64_t examples, double loss_sum) {
  v1::WorkerReport report;
  report.set_examples(examples);
  report.set_loss_sum(loss_sum);
  return report;
}

TEST_CASE("Before any report there is no loss and no speed") {
  ProgressMeter meter(100);
  CHECK_FALSE(meter.train_loss().has_value());
  CHECK(meter.examples_per_second() == 0);
  meter.OnReport(1, Of(0, 0));
  meter.Sample(absl::UnixEpoch(), 5);
  meter.Sample(absl::UnixEpoch(), 9);
  CHECK_FALSE(meter.train_loss().has_value());
  CHECK(meter.examples_per_second() == 0);
}

TEST_CASE("The loss is the mean over examples, of all workers, over about the window") {
  ProgressMeter meter(100);
  meter.OnReport(1, Of(50, 100));
  meter.OnReport(2, Of(50, 300));
  CHECK(meter.train_loss().value() == Approx(4));
  // Old examples leave the window.
  for (int i = 1; i <= 10; ++i) meter.OnReport(1, Of(50 + 50 * i, 100 + 50 * i));
  CHECK(meter.train_loss().value() == Approx(1));
}

TEST_CASE("A repeated or late report counts nothing twice; a new incarnation counts from zero") {
  ProgressMeter meter(1000);
  meter.OnReport(1, Of(50, 100));
  meter.OnReport(1, Of(50, 100));
  meter.OnReport(1, Of(20, 999));
  CHECK(meter.train_loss().value() == Approx(2));
  meter.OnReport(2, Of(50, 200));
  CHECK(meter.train_loss().value() == Approx(3));
}

TEST_CASE("The loss of the last epoch is the same in whatever order, and by however many, it was computed") {
  // The losses are rounded as workers round them.
  std::vector<float> losses;
  for (int i = 0; i < 1000; ++i) losses.push_back(0.1f + 1.0f / static_cast<float>(3 + i % 97));
  const auto loss = [&](size_t workers, bool backwards) {
    ProgressMeter meter(100);
    CHECK_FALSE(meter.last_epoch_loss().has_value());
    std::vector<v1::WorkerReport> reports(workers);
    for (size_t i = 0; i < losses.size(); ++i) {
      v1::WorkerReport& report = reports[i % workers];
      report.set_examples(report.examples() + 4);
      report.set_last_examples(report.last_examples() + 4);
      report.set_last_loss_sum(report.last_loss_sum() + losses[backwards ? losses.size() - 1 - i : i]);
    }
    for (size_t worker = 0; worker < workers; ++worker) meter.OnReport(worker + 1, reports[worker]);
    return meter.last_epoch_loss();
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
  ProgressMeter meter(100);
  absl::Time time = absl::UnixEpoch();
  uint64_t examples = 0;
  for (int i = 0; i < 20; ++i) meter.Sample(time += absl::Seconds(1), examples += 10);
  CHECK(meter.examples_per_second() == Approx(10));
  for (int i = 0; i < 20; ++i) meter.Sample(time += absl::Seconds(1), examples += 300);
  CHECK(meter.examples_per_second() == Approx(300));
}

}  // namespace
}  // namespace weir
