#include "ps_server/coordinator/evaluation/divergence_watch.h"

#include <limits>
#include <map>
#include <optional>
#include <string>
#include <vector>

#include "catch2/catch.hpp"
#include "common/protocol/limits.h"

namespace weir {
namespace {

constexpr uint64_t kExamples = 8;

struct Job {
  explicit Job(double factor = 10) : watch(factor) {}

  v1::LossWindow Window(uint64_t worker, double loss, uint64_t batches = kLossWindow) {
    v1::LossWindow window;
    window.set_number(++numbers[worker]);
    window.set_batches(batches);
    window.set_examples(batches * kExamples);
    window.set_loss_sum(loss * static_cast<double>(batches * kExamples));
    window.set_clock(clocks[worker] += batches);
    return window;
  }
  // Reports windows in one report, all of them long.
  std::optional<std::string> Report(uint64_t worker, const std::vector<double>& losses) {
    v1::WorkerReport report;
    for (double loss : losses) *report.add_loss_windows() = Window(worker, loss);
    return watch.OnReport(worker, report);
  }
  // Reports a worker's first window.
  std::optional<std::string> First(uint64_t worker, double loss) {
    v1::WorkerReport report;
    *report.add_loss_windows() = Window(worker, loss, kFirstLossWindow);
    return watch.OnReport(worker, report);
  }
  std::optional<std::string> NotFinite(uint64_t worker, uint64_t batches) {
    v1::WorkerReport report;
    v1::LossWindow& window = *report.add_loss_windows();
    window.set_number(++numbers[worker]);
    window.set_not_finite(batches);
    window.set_clock(clocks[worker] += batches);
    return watch.OnReport(worker, report);
  }

  DivergenceWatch watch;
  std::map<uint64_t, uint64_t> numbers, clocks;
};

TEST_CASE("a loss that grows beyond the factor, and beyond that of the job's first batches, diverges") {
  Job job;
  CHECK_FALSE(job.First(1, 2).has_value());
  CHECK_FALSE(job.Report(1, {1}).has_value());
  CHECK_FALSE(job.Report(1, {9}).has_value());
  CHECK(
      job.Report(1, {12}) ==
      "the mean loss of the last 50 batches is 12, the lowest before was 1 (train.divergence = 10) at clock "
      "155");
}

TEST_CASE("windows of one report are compared with each other") {
  Job job;
  CHECK_FALSE(job.First(1, 2).has_value());
  CHECK(job.Report(1, {1, 12, 1}).has_value());
}

TEST_CASE("a loss that has come close to 0 may rise by any factor up to where the job began") {
  Job job(100);
  CHECK_FALSE(job.First(1, 2).has_value());
  for (double loss : {1e-9, 1.9, 0.0, 1.9}) CHECK_FALSE(job.Report(1, {loss}).has_value());
  CHECK(job.watch.history().first() == 2);
  CHECK(job.watch.history().lowest() == 0);
}

TEST_CASE("a loss close to 0 may rise by any factor while it is small, even if the job began with 0") {
  Job job(100);
  CHECK_FALSE(job.First(1, 0).has_value());
  for (double loss : {0.0, 0.28, 0.0, 0.9}) CHECK_FALSE(job.Report(1, {loss}).has_value());
  CHECK(job.Report(1, {1.1}).has_value());
}

TEST_CASE("training that diverges from the start is found against the job's first batches") {
  Job job(100);
  CHECK_FALSE(job.First(1, 2).has_value());
  CHECK(job.Report(1, {1e6}).has_value());
}

TEST_CASE("a worker that joins later is judged by the job's beginning and by the job's lowest mean") {
  Job job;
  CHECK_FALSE(job.First(1, 5).has_value());
  CHECK_FALSE(job.Report(1, {0.1, 0.1}).has_value());
  // The worker happens to begin with a low loss, which is not the job's first.
  CHECK_FALSE(job.First(2, 0.001).has_value());
  CHECK_FALSE(job.Report(2, {0.01}).has_value());
  CHECK_FALSE(job.Report(2, {4}).has_value());
  CHECK(job.watch.history().first() == 5);
  // The worker happens to begin with a high loss.
  CHECK(job.First(3, 6) == std::nullopt);
  CHECK(job.Report(3, {6}).has_value());
}

TEST_CASE("a worker that joins again counts its windows anew") {
  Job job;
  CHECK_FALSE(job.First(1, 2).has_value());
  CHECK_FALSE(job.Report(1, {1, 1, 1}).has_value());
  job.watch.OnGone(1);
  job.numbers.clear();
  CHECK(job.Report(1, {30}).has_value());
}

TEST_CASE("a window that is reported again does not count again") {
  Job job;
  CHECK_FALSE(job.First(1, 2).has_value());
  v1::WorkerReport report;
  *report.add_loss_windows() = job.Window(1, 1, kLossWindow - 1);
  for (int i = 0; i < 3; ++i) CHECK_FALSE(job.watch.OnReport(1, report).has_value());
  CHECK(job.watch.history().lowest() == 2);
  *report.add_loss_windows() = job.Window(1, 1, 1);
  CHECK_FALSE(job.watch.OnReport(1, report).has_value());
  CHECK(job.watch.history().lowest() == 1);
}

TEST_CASE("the windows of a worker that stood still are compared with what the job knew before them") {
  Job job;
  CHECK_FALSE(job.First(1, 2).has_value());
  CHECK_FALSE(job.First(2, 2).has_value());
  CHECK_FALSE(job.Report(2, {1.9}).has_value());
  // Worker 2 stops, and worker 1 continues.
  for (int i = 0; i < 20; ++i) CHECK_FALSE(job.Report(1, {0.001}).has_value());
  // The first windows of worker 2 have batches from before, and so has the open one.
  CHECK_FALSE(job.Report(2, {2.1}).has_value());
  CHECK_FALSE(job.Report(1, {0.001}).has_value());
  CHECK_FALSE(job.Report(2, {2.1}).has_value());
  // Later windows have none.
  CHECK_FALSE(job.Report(2, {}).has_value());
  CHECK(job.Report(2, {2.1}).has_value());
}

TEST_CASE("losses that are not finite diverge when no other come between") {
  Job job(100);
  CHECK_FALSE(job.First(1, 2).has_value());
  CHECK_FALSE(job.NotFinite(1, kLossWindow - 1).has_value());
  CHECK(job.NotFinite(2, kLossWindow) ==
        "the losses of the last 50 batches are not finite (train.divergence = 100) at clock 50");
}

TEST_CASE("what no worker can mean changes nothing") {
  Job job;
  v1::WorkerReport report;
  v1::LossWindow& window = *report.add_loss_windows();
  window.set_number(1);
  window.set_batches(kLossWindow);
  CHECK_FALSE(job.watch.OnReport(1, report).has_value());  // no examples
  window.set_examples(1);
  for (double loss : {std::numeric_limits<double>::quiet_NaN(), std::numeric_limits<double>::infinity()}) {
    window.set_number(window.number() + 1);
    window.set_loss_sum(loss);
    CHECK_FALSE(job.watch.OnReport(1, report).has_value());
  }
  CHECK_FALSE(job.watch.history().has_first());
}

TEST_CASE("0 finds nothing, and keeps the history") {
  Job job(0);
  CHECK_FALSE(job.First(1, 1).has_value());
  for (int i = 0; i < 10; ++i) CHECK_FALSE(job.Report(1, {1e30}).has_value());
  CHECK_FALSE(job.NotFinite(1, 1000).has_value());
  CHECK(job.watch.history().first() == 1);
}

TEST_CASE("the history goes on where a checkpoint has it") {
  Job job;
  CHECK_FALSE(job.First(1, 3).has_value());
  CHECK_FALSE(job.Report(1, {0.1}).has_value());
  Job resumed;
  resumed.watch.Restore(job.watch.history());
  CHECK_FALSE(resumed.First(7, 0.2).has_value());
  CHECK_FALSE(resumed.Report(7, {2.5}).has_value());
  CHECK(resumed.Report(7, {3.5}).has_value());
}

}  // namespace
}  // namespace weir
