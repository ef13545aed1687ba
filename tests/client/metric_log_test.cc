#include "client/job/metric_log.h"

#include <limits>
#include <string>
#include <vector>

#include "catch2/catch.hpp"
#include "common/protocol/limits.h"
#include "common/protocol/logged_metric.h"

namespace weir {
namespace {

using Catch::Contains;

v1::WorkerReport ReportOf(const MetricLog& log) {
  v1::WorkerReport report;
  log.Describe(&report);
  return report;
}

TEST_CASE("metrics are sums since the member joined, by rising name") {
  MetricLog log;
  REQUIRE(log.Add({{"b", 0.5}, {"a", 1}}, /*last=*/false, 8, 1) == absl::OkStatus());
  REQUIRE(log.Add({{"a", 4}}, /*last=*/false, 2, 2) == absl::OkStatus());
  REQUIRE(log.Add({{"lr", 0.1}}, /*last=*/true, 8, 2) == absl::OkStatus());
  REQUIRE(log.Add({{"lr", 0.2}}, /*last=*/true, 8, 3) == absl::OkStatus());
  const v1::WorkerReport report = ReportOf(log);
  REQUIRE(report.metrics_size() == 3);
  CHECK(report.metrics(0).name() == "a");
  CHECK(report.metrics(0).kind() == v1::LoggedMetric::MEAN);
  CHECK(report.metrics(0).sum() == 16);
  CHECK(report.metrics(0).weight() == 10);
  CHECK(report.metrics(1).sum() == 4);
  CHECK(report.metrics(2).kind() == v1::LoggedMetric::LAST);
  CHECK(report.metrics(2).last() == 0.2);
  CHECK(report.metrics(2).clock() == 3);
}

TEST_CASE("scores are counted by interval and label") {
  MetricLog log;
  REQUIRE(log.AddScores("auc", {0, 0.5, 0.5, 1}, {0, 1, 0, 1}) == absl::OkStatus());
  REQUIRE(log.AddScores("auc", {0.5}, {1}) == absl::OkStatus());
  const v1::LoggedMetric metric = ReportOf(log).metrics(0);
  REQUIRE(metric.positives_size() == kScoreIntervals);
  REQUIRE(metric.negatives_size() == kScoreIntervals);
  CHECK(metric.negatives(0) == 1);
  CHECK(metric.positives(kScoreIntervals / 2) == 2);
  CHECK(metric.negatives(kScoreIntervals / 2) == 1);
  CHECK(metric.positives(kScoreIntervals - 1) == 1);
}

TEST_CASE("what cannot be logged is named, and logs nothing") {
  MetricLog log;
  REQUIRE(log.Add({{"a", 1}}, false, 1, 0) == absl::OkStatus());
  const std::string before = ReportOf(log).SerializeAsString();
  const auto refused = [&](const absl::Status& status, const std::string& why) {
    CHECK(status.code() == absl::StatusCode::kInvalidArgument);
    CHECK_THAT(std::string(status.message()), Contains(why));
    CHECK(ReportOf(log).SerializeAsString() == before);
  };
  const double nan = std::numeric_limits<double>::quiet_NaN();
  refused(log.Add({{"a", 2}, {"b c", 1}}, false, 1, 0), "the metric \"b c\": a name has");
  refused(log.Add({{"a", 2}, {"b", nan}}, false, 1, 0), "the metric \"b\": a value must be finite; got nan");
  refused(log.Add({{"a", 2}}, true, 1, 0),
          "the metric \"a\": it is a mean already, and cannot be a last value");
  refused(log.Add({{"a", 2}}, false, -1, 0), "weight: must be above 0, and finite; got -1");
  refused(log.AddScores("s", {0.5, 1.5}, {0, 1}), "the metric \"s\": scores[1]: must be in [0, 1]");
  refused(log.AddScores("s", {0.5, 0.5}, {0, 2}), "the metric \"s\": labels[1]: must be 0 or 1; got 2");
  refused(log.AddScores("s", {0.5}, {}), "the metric \"s\": there are 1 scores, and 0 labels");
}

TEST_CASE("the largest report fits into a request") {
  MetricLog log;
  const auto name = [](size_t i) { return std::string(62, 'x') + std::to_string(i + 10); };
  for (size_t i = 0; i < kMaxLoggedHistograms; ++i) {
    REQUIRE(log.AddScores(name(i), {0.5}, {1}) == absl::OkStatus());
  }
  CHECK_THAT(std::string(log.AddScores("auc", {0.5}, {1}).message()),
             Contains("an AUC can have at most 4 names"));
  for (size_t i = kMaxLoggedHistograms; i < kMaxLogged; ++i) {
    REQUIRE(log.Add({{name(i), 0.1}}, false, 0.1, 1ull << 60) == absl::OkStatus());
  }
  CHECK_THAT(std::string(log.Add({{"one", 1}}, false, 1, 0).message()),
             Contains("at most 64 names are allowed"));
  CHECK(log.Add({{name(40), 1}}, false, 1, 0) == absl::OkStatus());
  // As many examples in each interval as no worker has in a year.
  v1::WorkerReport report = ReportOf(log);
  for (v1::LoggedMetric& metric : *report.mutable_metrics()) {
    for (auto* counts : {metric.mutable_positives(), metric.mutable_negatives()}) {
      for (uint64_t& count : *counts) count = 1ull << 34;
    }
  }
  CHECK(report.ByteSizeLong() < kMaxRequestBytes * 9 / 10);
}

}  // namespace
}  // namespace weir
