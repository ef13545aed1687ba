#include "ps_server/coordinator/progress/logged_metrics.h"

#include <catch2/catch.hpp>
#include <limits>
#include <map>
#include <string>

#include "absl/strings/str_cat.h"
#include "common/protocol/logged_metric.h"

namespace weir {
namespace {

constexpr uint64_t kEpoch = 160;

v1::LoggedMetric Mean(const std::string& name, double sum, double weight) {
  v1::LoggedMetric metric;
  metric.set_name(name);
  metric.set_kind(v1::LoggedMetric::MEAN);
  metric.set_sum(sum);
  metric.set_weight(weight);
  return metric;
}

v1::LoggedMetric Last(const std::string& name, double value, uint64_t clock, double weight) {
  v1::LoggedMetric metric;
  metric.set_name(name);
  metric.set_kind(v1::LoggedMetric::LAST);
  metric.set_last(value);
  metric.set_clock(clock);
  metric.set_weight(weight);
  return metric;
}

v1::LoggedMetric Scores(const std::string& name, int positive_interval, int negative_interval) {
  v1::LoggedMetric metric;
  metric.set_name(name);
  metric.set_kind(v1::LoggedMetric::AUC);
  metric.mutable_positives()->Resize(kScoreIntervals, 0);
  metric.mutable_negatives()->Resize(kScoreIntervals, 0);
  metric.set_positives(positive_interval, 1);
  metric.set_negatives(negative_interval, 1);
  return metric;
}

struct Fixture {
  void Report(uint64_t incarnation, const v1::LoggedMetric& metric, uint64_t examples = 0) {
    v1::WorkerReport report;
    *report.add_metrics() = metric;
    logged.OnReport(absl::UnixEpoch(), incarnation, report, examples, kEpoch);
  }
  std::map<std::string, double> Shown() const {
    v1::ClusterStatus status;
    logged.Describe(&status);
    std::map<std::string, double> shown;
    for (const v1::LoggedMetric& metric : status.metrics()) {
      CHECK(metric.positives().empty());
      shown[metric.name()] = metric.last();
    }
    return shown;
  }
  LoggedMetrics logged;
};

using Values = std::map<std::string, double>;

TEST_CASE("each value counts exactly once, over all workers") {
  Fixture f;
  CHECK(f.Shown().empty());
  f.Report(1, Mean("a", 10, 10));
  f.Report(1, Mean("a", 10, 10));
  f.Report(2, Mean("a", 60, 20));
  CHECK(f.Shown() == Values{{"a", 70.0 / 30}});
  f.Report(1, Mean("a", 30, 20));
  CHECK(f.Shown() == Values{{"a", 90.0 / 40}});
  // A report that is late.
  f.Report(1, Mean("a", 10, 10));
  CHECK(f.Shown() == Values{{"a", 90.0 / 40}});
  // The worker joins again, and counts anew.
  f.logged.OnGone(1);
  f.Report(3, Mean("a", 10, 10));
  CHECK(f.Shown() == Values{{"a", 2}});
}

TEST_CASE("a mean is over about the last epoch") {
  Fixture f;
  for (uint64_t i = 1; i <= 100; ++i) {
    // The value is the number of the epoch.
    const auto total = [](uint64_t n) { return n <= 16 ? n * 1.0 : 16 + (n - 16) * 2.0; };
    f.Report(1, Mean("a", total(i), static_cast<double>(i)), (i - 1) * 10);
    if (i == 16) CHECK(f.Shown() == Values{{"a", 1}});
    if (i == 24) CHECK(f.Shown().at("a") == Approx(1.5).margin(0.05));
    if (i >= 33) CHECK(f.Shown() == Values{{"a", 2}});
  }
  SECTION("what is no longer logged stays") {
    f.Report(1, Mean("b", 1, 1), 5000);
    CHECK(f.Shown() == Values{{"a", 2}, {"b", 1}});
    f.Report(1, Mean("a", 16 + 84 * 2.0 + 7, 101), 5000 + kEpoch);
    CHECK(f.Shown().at("a") == 7);
  }
  SECTION("the job goes back") {
    f.Report(1, Mean("a", 16 + 84 * 2.0 + 50, 110), 300);
    CHECK(f.Shown().at("a") > 2);
    f.Report(1, Mean("a", 16 + 84 * 2.0 + 100, 120), 480);
    f.Report(1, Mean("a", 16 + 84 * 2.0 + 150, 130), 480 + kEpoch);
    CHECK(f.Shown().at("a") == 5);
  }
}

TEST_CASE("the last value is that of the highest clock") {
  Fixture f;
  f.Report(1, Last("lr", 0.1, 7, 8));
  f.Report(2, Last("lr", 0.2, 5, 8));
  CHECK(f.Shown() == Values{{"lr", 0.1}});
  f.Report(2, Last("lr", 0.3, 9, 16));
  CHECK(f.Shown() == Values{{"lr", 0.3}});
}

TEST_CASE("an AUC is that of all workers' scores, once there are both labels") {
  Fixture f;
  v1::LoggedMetric positives = Scores("auc", 700, 0);
  positives.set_negatives(0, 0);
  f.Report(1, positives);
  CHECK(f.Shown().empty());
  f.Report(2, Scores("auc", 100, 300));
  // Of the positives, one is above the negative and one below.
  CHECK(f.Shown() == Values{{"auc", 0.5}});
}

TEST_CASE("what breaks a rule is left out, and changes nothing") {
  Fixture f;
  f.Report(1, Mean("a", 10, 10));
  const double infinity = std::numeric_limits<double>::infinity();
  f.Report(1, Mean("a\n", 1, 1));
  f.Report(1, Mean("a", infinity, 20));
  f.Report(1, Mean("a", 10, -20));
  f.Report(2, Last("a", 1, 1, 1));
  v1::LoggedMetric narrow = Scores("narrow", 1, 0);
  narrow.mutable_positives()->Truncate(3);
  f.Report(1, narrow);
  f.Report(1, v1::LoggedMetric());
  CHECK(f.Shown() == Values{{"a", 1}});
  for (size_t i = 0; i < 2 * kMaxLogged; ++i) f.Report(i, Mean(absl::StrCat("b", i), 1, 1));
  for (size_t i = 0; i < 10; ++i) f.Report(i, Scores(absl::StrCat("c", i), 1, 0));
  CHECK(f.Shown().size() == kMaxLogged);
}

}  // namespace
}  // namespace weir
