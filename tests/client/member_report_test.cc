#include "client/job/member_report.h"

#include <vector>

#include "catch2/catch.hpp"
#include "common/protocol/limits.h"

namespace weir {
namespace {

Progress After(uint64_t batches) {
  Progress progress;
  progress.batches = progress.examples = batches;
  progress.loss_sum = static_cast<double>(batches);
  return progress;
}

TEST_CASE("A report has the progress, the metrics and the computing time") {
  MemberReport report([] { return 2.5; });
  report.SetProgress(After(3), /*clock=*/2);
  const std::vector<LoggedValue> values = {{"lr", 0.5}};
  CHECK(report.Log(values, /*last=*/true, /*weight=*/1, /*clock=*/2).ok());
  const v1::WorkerReport made = report.Make();
  CHECK(made.batches() == 3);
  CHECK(made.compute_seconds() == 2.5);
  REQUIRE(made.metrics_size() == 1);
  CHECK(made.metrics(0).name() == "lr");

  MemberReport unknown([] { return -1.0; }), none(nullptr);
  CHECK_FALSE(unknown.Make().has_compute_seconds());
  CHECK_FALSE(none.Make().has_compute_seconds());
}

TEST_CASE("A window of losses is reported until ps:0 has a report with it") {
  MemberReport report(nullptr);
  for (uint64_t n = 1; n <= kFirstLossWindow; ++n) report.SetProgress(After(n), n);
  report.OnAcknowledged();  // of a report before the window
  CHECK(report.Make().loss_windows_size() == 1);
  CHECK(report.Make().loss_windows_size() == 1);
  for (uint64_t n = 1; n <= kLossWindow; ++n) report.SetProgress(After(kFirstLossWindow + n), n);
  report.OnAcknowledged();
  const v1::WorkerReport made = report.Make();
  REQUIRE(made.loss_windows_size() == 1);
  CHECK(made.loss_windows(0).number() == 2);
}

}  // namespace
}  // namespace weir
