#include "ps_server/coordinator/best_epoch.h"

#include <cstdint>
#include <optional>

#include "absl/strings/str_cat.h"

namespace weir {
namespace {

// The metric as a cost: less is better.
std::optional<double> CostOf(v1::EvaluationConfig::Metric metric, const v1::EpochEvaluation& epoch) {
  if (metric == v1::EvaluationConfig::METRIC_TEST_ACCURACY) {
    return epoch.has_test_accuracy() ? std::optional(-epoch.test_accuracy()) : std::nullopt;
  }
  return epoch.has_test_loss() ? std::optional(epoch.test_loss()) : std::nullopt;
}

}  // namespace

bool IsBetter(v1::EvaluationConfig::Metric metric, const v1::EpochEvaluation& one,
              const v1::EpochEvaluation& other, double min_delta) {
  const std::optional<double> cost = CostOf(metric, one), than = CostOf(metric, other);
  if (!cost.has_value()) return false;
  return !than.has_value() || *cost < *than - min_delta;
}

std::string WhyStopped(const v1::EvaluationConfig& config, const std::vector<v1::EpochEvaluation>& epochs) {
  if (config.patience() == 0) return "";
  const v1::EpochEvaluation* best = nullptr;
  uint32_t no_better = 0;
  for (const v1::EpochEvaluation& epoch : epochs) {
    if (!epoch.has_step()) continue;  // no member could evaluate it
    if (best == nullptr || IsBetter(config.metric(), epoch, *best, config.min_delta())) {
      best = &epoch;
      no_better = 0;
    } else {
      ++no_better;
    }
  }
  if (no_better < config.patience() || !epochs.back().has_step()) return "";
  const bool accuracy = config.metric() == v1::EvaluationConfig::METRIC_TEST_ACCURACY;
  const std::optional<double> cost = CostOf(config.metric(), *best);
  return absl::StrCat("after epoch ", epochs.back().epoch(), ", since ", no_better,
                      no_better == 1 ? " evaluation was" : " evaluations were",
                      " no better than that of epoch ", best->epoch(),
                      cost.has_value()
                          ? absl::StrCat(accuracy ? ", whose test accuracy was " : ", whose test loss was ",
                                         accuracy ? -*cost : *cost)
                          : "",
                      " (evaluation.patience = ", config.patience(),
                      config.min_delta() > 0 ? absl::StrCat(", min_delta = ", config.min_delta()) : "", ")");
}

}  // namespace weir
