#include "client/job/metric_log.h"

#include <algorithm>
#include <cmath>

#include "absl/strings/str_cat.h"
#include "common/base/status_macros.h"
#include "common/protocol/logged_metric.h"

namespace weir {
namespace {

const char* WordOf(v1::LoggedMetric::Kind kind) {
  return kind == v1::LoggedMetric::MEAN   ? "a mean"
         : kind == v1::LoggedMetric::LAST ? "a last value"
                                          : "an AUC";
}

absl::Status Refused(absl::string_view name, absl::string_view why) {
  return absl::InvalidArgumentError(absl::StrCat("the metric \"", name, "\": ", why));
}

}  // namespace

absl::Status MetricLog::Check(absl::string_view name, v1::LoggedMetric::Kind kind, size_t more) const {
  WEIR_RETURN_IF_ERROR(CheckMetricName(name));
  if (const auto known = metrics_.find(name); known != metrics_.end()) {
    if (known->second.kind() == kind) return absl::OkStatus();
    return Refused(name, absl::StrCat("it is ", WordOf(known->second.kind()), " already, and cannot be ",
                                      WordOf(kind), ", too; take another name"));
  }
  if (metrics_.size() + more >= kMaxLogged)
    return Refused(name, absl::StrCat("it is one too many; at most ", kMaxLogged, " names are allowed"));
  const auto histograms =
      static_cast<size_t>(std::count_if(metrics_.begin(), metrics_.end(), [](const auto& metric) {
        return metric.second.kind() == v1::LoggedMetric::AUC;
      }));
  if (kind == v1::LoggedMetric::AUC && histograms >= kMaxLoggedHistograms) {
    return Refused(
        name, absl::StrCat("it is one too many; an AUC can have at most ", kMaxLoggedHistograms, " names"));
  }
  return absl::OkStatus();
}

absl::Status MetricLog::Add(absl::Span<const LoggedValue> values, bool last, double weight, uint64_t clock) {
  const auto kind = last ? v1::LoggedMetric::LAST : v1::LoggedMetric::MEAN;
  if (!std::isfinite(weight) || weight <= 0)
    return absl::InvalidArgumentError(absl::StrCat("weight: must be above 0, and finite; got ", weight));
  size_t more = 0;
  for (const LoggedValue& value : values) {
    WEIR_RETURN_IF_ERROR(Check(value.name, kind, more));
    if (!std::isfinite(value.value)) {
      return Refused(value.name, absl::StrCat("a value must be finite; got ", value.value));
    }
    more += metrics_.count(value.name) == 0;
  }
  for (const LoggedValue& value : values) {
    auto found = metrics_.find(value.name);
    if (found == metrics_.end()) {
      found = metrics_.emplace(std::string(value.name), v1::LoggedMetric()).first;
      found->second.set_name(found->first);
      found->second.set_kind(kind);
    }
    v1::LoggedMetric& metric = found->second;
    metric.set_sum(metric.sum() + value.value * weight);
    metric.set_weight(metric.weight() + weight);
    metric.set_last(value.value);
    metric.set_clock(clock);
  }
  return absl::OkStatus();
}

absl::Status MetricLog::AddScores(absl::string_view name, absl::Span<const float> scores,
                                  absl::Span<const float> labels) {
  WEIR_RETURN_IF_ERROR(Check(name, v1::LoggedMetric::AUC, 0));
  if (scores.size() != labels.size()) {
    return Refused(name,
                   absl::StrCat("there are ", scores.size(), " scores, and ", labels.size(), " labels"));
  }
  for (size_t i = 0; i < scores.size(); ++i) {
    if (!(scores[i] >= 0 && scores[i] <= 1)) {
      return Refused(name,
                     absl::StrCat("scores[", i, "]: must be in [0, 1], such as the sigmoid of a logit; got ",
                                  scores[i]));
    }
    if (labels[i] != 0 && labels[i] != 1)
      return Refused(name, absl::StrCat("labels[", i, "]: must be 0 or 1; got ", labels[i]));
  }
  v1::LoggedMetric& metric = metrics_[std::string(name)];
  if (metric.name().empty()) {
    metric.set_name(std::string(name));
    metric.set_kind(v1::LoggedMetric::AUC);
    metric.mutable_positives()->Resize(kScoreIntervals, 0);
    metric.mutable_negatives()->Resize(kScoreIntervals, 0);
  }
  for (size_t i = 0; i < scores.size(); ++i) {
    const auto interval =
        std::min(kScoreIntervals - 1, static_cast<size_t>(scores[i] * static_cast<float>(kScoreIntervals)));
    uint64_t& count = (labels[i] == 1 ? *metric.mutable_positives()
                                      : *metric.mutable_negatives())[static_cast<int>(interval)];
    ++count;
  }
  metric.set_weight(metric.weight() + static_cast<double>(scores.size()));
  return absl::OkStatus();
}

void MetricLog::Describe(v1::WorkerReport* report) const {
  for (const auto& [name, metric] : metrics_) *report->add_metrics() = metric;
}

}  // namespace weir
