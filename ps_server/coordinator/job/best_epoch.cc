#include "ps_server/coordinator/job/best_epoch.h"

#include <cstdint>
#include <optional>

#include "absl/strings/str_cat.h"

namespace weir {
namespace {

struct Metric {
  const char* name;
  std::optional<double> value;
  // Less is better.
  std::optional<double> cost;
};

Metric MetricOf(v1::EvaluationConfig::Metric metric, const v1::EpochEvaluation& epoch) {
  const auto more_is_better = [](const char* name, bool has, double value) {
    return has ? Metric{name, value, -value} : Metric{name, std::nullopt, std::nullopt};
  };
  if (metric == v1::EvaluationConfig::METRIC_TEST_ACCURACY) {
    return more_is_better("test accuracy", epoch.has_test_accuracy(), epoch.test_accuracy());
  }
  if (metric == v1::EvaluationConfig::METRIC_TEST_AUC) {
    return more_is_better("test AUC", epoch.has_test_auc(), epoch.test_auc());
  }
  const std::optional<double> loss = epoch.has_test_loss() ? std::optional(epoch.test_loss()) : std::nullopt;
  return {"test loss", loss, loss};
}

}  // namespace

bool IsBetter(v1::EvaluationConfig::Metric metric, const v1::EpochEvaluation& one,
              const v1::EpochEvaluation& other, double min_delta) {
  const std::optional<double> cost = MetricOf(metric, one).cost, than = MetricOf(metric, other).cost;
  if (!cost.has_value()) return false;
  return !than.has_value() || *cost < *than - min_delta;
}

std::string WhyStopped(const v1::EvaluationConfig& config, const std::vector<v1::EpochEvaluation>& epochs) {
  if (config.patience() == 0) return "";
  const v1::EpochEvaluation* best = nullptr;
  uint32_t no_better = 0;
  for (const v1::EpochEvaluation& epoch : epochs) {
    if (!epoch.has_step()) continue;  // no member could evaluate this epoch
    if (best == nullptr || IsBetter(config.metric(), epoch, *best, config.min_delta())) {
      best = &epoch;
      no_better = 0;
    } else {
      ++no_better;
    }
  }
  if (no_better < config.patience() || !epochs.back().has_step()) return "";
  const Metric metric = MetricOf(config.metric(), *best);
  return absl::StrCat(
      "after epoch ", epochs.back().epoch(), ", since ", no_better,
      no_better == 1 ? " evaluation was" : " evaluations were", " no better than that of epoch ",
      best->epoch(),
      metric.value.has_value() ? absl::StrCat(", whose ", metric.name, " was ", *metric.value) : "",
      " (evaluation.patience = ", config.patience(),
      config.min_delta() > 0 ? absl::StrCat(", min_delta = ", config.min_delta()) : "", ")");
}

}  // namespace weir
