#include "ps_server/coordinator/progress.h"

#include "catch2/catch.hpp"

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

TEST_CASE("A repeated or late report counts nothing twice; a new life counts from zero") {
  ProgressMeter meter(1000);
  meter.OnReport(1, Of(50, 100));
  meter.OnReport(1, Of(50, 100));
  meter.OnReport(1, Of(20, 999));
  CHECK(meter.train_loss().value() == Approx(2));
  meter.OnReport(2, Of(50, 200));
  CHECK(meter.train_loss().value() == Approx(3));
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
