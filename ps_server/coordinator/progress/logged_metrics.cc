#include "ps_server/coordinator/progress/logged_metrics.h"

#include <algorithm>
#include <cmath>
#include <numeric>
#include <optional>

#include "absl/strings/str_cat.h"
#include "absl/types/span.h"
#include "common/protocol/logged_metric.h"

namespace weir {
namespace {

// The window begins at a mark, of which an epoch has about this many.
constexpr uint64_t kMarksOfEpoch = 16;

bool HasHistograms(const v1::LoggedMetric& metric) { return metric.kind() == v1::LoggedMetric::AUC; }

uint64_t Count(const v1::LoggedMetric& metric) {
  return std::accumulate(metric.negatives().begin(), metric.negatives().end(),
                         std::accumulate(metric.positives().begin(), metric.positives().end(), uint64_t{0}));
}

// a += b - c, where c is shorter if it is of an earlier time.
template <typename Counts>
void AddDifference(const Counts& b, const Counts& c, Counts* a) {
  a->Resize(std::max(a->size(), b.size()), 0);
  for (int i = 0; i < b.size(); ++i) (*a)[i] += b[i] - (i < c.size() ? c[i] : 0);
}

void AddDifference(const v1::LoggedMetric& b, const v1::LoggedMetric& c, v1::LoggedMetric& a) {
  a.set_sum(a.sum() + b.sum() - c.sum());
  a.set_weight(a.weight() + b.weight() - c.weight());
  AddDifference(b.positives(), c.positives(), a.mutable_positives());
  AddDifference(b.negatives(), c.negatives(), a.mutable_negatives());
}

// The value of what was logged in a window; nullopt: it has none.
std::optional<double> ValueOf(const v1::LoggedMetric& window, const v1::LoggedMetric& total) {
  switch (window.kind()) {
    case v1::LoggedMetric::LAST:
      return total.last();
    case v1::LoggedMetric::AUC:
      return AucOf(absl::MakeConstSpan(window.positives().data(), window.positives().size()),
                   absl::MakeConstSpan(window.negatives().data(), window.negatives().size()));
    default:
      return window.sum() / window.weight();
  }
}

}  // namespace

void LoggedMetrics::OnReport(absl::Time now, uint64_t incarnation, const v1::WorkerReport& report,
                             uint64_t examples, uint64_t epoch) {
  if (report.metrics().empty()) return;
  MoveWindow(examples, epoch);
  Metrics& newest = newest_[incarnation];
  for (const v1::LoggedMetric& metric : report.metrics()) {
    if (const std::string fault = Fault(metric); !fault.empty()) {
      if (complaints_.Due(now)) LogWarning("a metric that a worker logged is left out: ", fault);
      continue;
    }
    if (!Add(metric, newest[metric.name()])) continue;
    const v1::LoggedMetric& total = totals_[metric.name()];
    v1::LoggedMetric window;
    window.set_kind(metric.kind());
    const auto before = marks_.front().totals.find(metric.name());
    AddDifference(total, before == marks_.front().totals.end() ? v1::LoggedMetric() : before->second, window);
    const std::optional<double> value = ValueOf(window, total);
    if (!value.has_value() || !std::isfinite(*value)) continue;
    v1::LoggedMetric& shown = shown_[metric.name()];
    shown.set_name(metric.name());
    shown.set_kind(metric.kind());
    shown.set_sum(window.sum());
    shown.set_weight(window.weight());
    shown.set_last(*value);
    shown.set_clock(total.clock());
  }
}

void LoggedMetrics::MoveWindow(uint64_t examples, uint64_t epoch) {
  // The job may have gone back.
  while (marks_.size() > 1 && marks_.back().examples > examples) marks_.pop_back();
  if (!marks_.empty()) marks_.back().examples = std::min(marks_.back().examples, examples);
  if (marks_.empty() || examples >= marks_.back().examples + std::max<uint64_t>(1, epoch / kMarksOfEpoch))
    marks_.push_back({examples, totals_});
  while (marks_.size() > 1 && marks_[1].examples + epoch <= examples) marks_.pop_front();
}

bool LoggedMetrics::Add(const v1::LoggedMetric& report, v1::LoggedMetric& before) {
  const bool news = HasHistograms(report) ? Count(report) > Count(before) : report.weight() > before.weight();
  if (!news) return false;
  v1::LoggedMetric& total = totals_[report.name()];
  total.set_kind(report.kind());
  AddDifference(report, before, total);
  if (report.clock() >= total.clock()) {
    total.set_clock(report.clock());
    total.set_last(report.last());
  }
  before = report;
  return true;
}

std::string LoggedMetrics::Fault(const v1::LoggedMetric& report) const {
  if (const absl::Status name = CheckMetricName(report.name()); !name.ok())
    return std::string(name.message());
  const auto known = totals_.find(report.name());
  if (known != totals_.end() && known->second.kind() != report.kind()) {
    return absl::StrCat("\"", report.name(), "\" is ", v1::LoggedMetric::Kind_Name(report.kind()),
                        " for one worker, and ", v1::LoggedMetric::Kind_Name(known->second.kind()),
                        " for another");
  }
  const bool finite =
      std::isfinite(report.sum()) && std::isfinite(report.weight()) && std::isfinite(report.last());
  const size_t intervals = HasHistograms(report) ? kScoreIntervals : 0;
  if (!finite || report.kind() == v1::LoggedMetric::KIND_UNSPECIFIED ||
      static_cast<size_t>(report.positives_size()) != intervals ||
      static_cast<size_t>(report.negatives_size()) != intervals) {
    return absl::StrCat("the report of \"", report.name(), "\" is malformed");
  }
  if (known != totals_.end()) return "";
  const auto histograms = static_cast<size_t>(std::count_if(
      totals_.begin(), totals_.end(), [](const auto& metric) { return HasHistograms(metric.second); }));
  if (totals_.size() < kMaxLogged && (!HasHistograms(report) || histograms < kMaxLoggedHistograms)) return "";
  return absl::StrCat("\"", report.name(), "\" is one too many: all workers together have at most ",
                      kMaxLogged, " names, ", kMaxLoggedHistograms, " of them with an AUC");
}

void LoggedMetrics::Describe(v1::ClusterStatus* status) const {
  for (const auto& [name, metric] : shown_) *status->add_metrics() = metric;
}

}  // namespace weir
