#include <string>
#include <vector>

#include "catch2/catch.hpp"
#include "ps_server/coordinator/job/job.h"

namespace weir {
namespace {

using Catch::Contains;
constexpr auto kLoss = v1::EvaluationConfig::METRIC_TEST_LOSS;
constexpr auto kAccuracy = v1::EvaluationConfig::METRIC_TEST_ACCURACY;

// A negative loss stands for a loss that is not finite.
v1::EpochEvaluation Epoch(uint64_t epoch, double loss, double accuracy = 0.5) {
  v1::EpochEvaluation entry;
  entry.set_epoch(epoch);
  entry.set_step(10 * epoch);
  if (loss >= 0) entry.set_test_loss(loss);
  entry.set_test_accuracy(accuracy);
  return entry;
}
v1::EpochEvaluation Missed(uint64_t epoch) {
  v1::EpochEvaluation entry;
  entry.set_epoch(epoch);
  return entry;
}
std::vector<v1::EpochEvaluation> Losses(const std::vector<double>& losses) {
  std::vector<v1::EpochEvaluation> epochs;
  for (double loss : losses) epochs.push_back(Epoch(epochs.size() + 1, loss));
  return epochs;
}

TEST_CASE("Less loss is better, more accuracy is, and any result is better than none") {
  CHECK(IsBetter(kLoss, Epoch(2, 0.25), Epoch(1, 0.5)));
  CHECK_FALSE(IsBetter(kLoss, Epoch(2, 0.5), Epoch(1, 0.5)));
  CHECK_FALSE(IsBetter(kLoss, Epoch(2, 0.25), Epoch(1, 0.5), 0.25));
  CHECK(IsBetter(kLoss, Epoch(2, 0.125), Epoch(1, 0.5), 0.25));
  CHECK(IsBetter(kAccuracy, Epoch(2, 9, 0.75), Epoch(1, 0.5, 0.5)));
  CHECK_FALSE(IsBetter(kAccuracy, Epoch(2, 0.25, 0.5), Epoch(1, 0.5, 0.5)));
  CHECK(IsBetter(kLoss, Epoch(2, 0.25), {}));
  CHECK(IsBetter(kLoss, Epoch(2, 0.25), Epoch(1, -1)));
  CHECK_FALSE(IsBetter(kLoss, Epoch(2, -1), Epoch(1, 0.5)));
  CHECK_FALSE(IsBetter(kLoss, Missed(2), {}));
}

TEST_CASE("The metrics' newer names mean the same, and the reason names the set") {
  const auto loss = v1::EvaluationConfig::METRIC_LOSS, accuracy = v1::EvaluationConfig::METRIC_ACCURACY;
  CHECK(IsBetter(loss, Epoch(2, 0.25), Epoch(1, 0.5)));
  CHECK_FALSE(IsBetter(loss, Epoch(2, 0.75, 0.9), Epoch(1, 0.5)));
  CHECK(IsBetter(accuracy, Epoch(2, 9, 0.75), Epoch(1, 0.5, 0.5)));
  v1::EvaluationConfig config;
  config.set_metric(accuracy);
  config.set_patience(1);
  std::vector<v1::EpochEvaluation> epochs = Losses({0.5, 0.25});
  CHECK_THAT(WhyStopped(config, epochs), Contains("whose test accuracy was 0.5"));
  for (v1::EpochEvaluation& epoch : epochs) epoch.set_validation(true);
  CHECK_THAT(WhyStopped(config, epochs), Contains("whose validation accuracy was 0.5"));
}

TEST_CASE("More AUC is better, and an epoch without it is not") {
  constexpr auto kAuc = v1::EvaluationConfig::METRIC_TEST_AUC;
  const auto with = [](uint64_t epoch, double auc) {
    v1::EpochEvaluation entry = Epoch(epoch, 0.5);
    entry.set_test_auc(auc);
    return entry;
  };
  CHECK(IsBetter(kAuc, with(2, 0.75), with(1, 0.5)));
  CHECK_FALSE(IsBetter(kAuc, with(2, 0.5), with(1, 0.75)));
  CHECK_FALSE(IsBetter(kAuc, Epoch(2, 0.25), with(1, 0.75)));
  CHECK(IsBetter(kAuc, with(2, 0.25), Epoch(1, 0.5)));
  v1::EvaluationConfig config;
  config.set_metric(kAuc);
  config.set_patience(1);
  CHECK(WhyStopped(config, {with(1, 0.75), with(2, 0.5)}) ==
        "after epoch 2, since 1 evaluation was no better than that of epoch 1, whose test AUC was 0.75 "
        "(evaluation.patience = 1)");
}

TEST_CASE("Patience: so many results in a row that are no better than the best before them") {
  v1::EvaluationConfig config;
  config.set_metric(kLoss);
  CHECK(WhyStopped(config, Losses({1, 2, 3, 4})) == "");
  config.set_patience(2);
  CHECK(WhyStopped(config, {}) == "");
  CHECK(WhyStopped(config, Losses({3, 4})) == "");
  CHECK(WhyStopped(config, Losses({3, 4, 2, 3})) == "");
  CHECK(WhyStopped(config, Losses({3, 4, 2, 3, 2})) ==
        "after epoch 5, since 2 evaluations were no better than that of epoch 3, whose test loss was 2 "
        "(evaluation.patience = 2)");
  // A loss that is not finite is not an improvement.
  CHECK_THAT(WhyStopped(config, Losses({3, -1, -1})), Contains("after epoch 3"));
  CHECK_THAT(WhyStopped(config, Losses({-1, -1, -1})), Contains("no better than that of epoch 1 "));
  config.set_min_delta(1);
  CHECK_THAT(WhyStopped(config, Losses({3, 2.5, 2})),
             Contains("of epoch 1, whose test loss was 3") && Contains("min_delta = 1"));
  CHECK(WhyStopped(config, Losses({3, 2.5, 1.5})) == "");
  config.set_metric(kAccuracy);
  config.clear_min_delta();
  CHECK_THAT(WhyStopped(config, {Epoch(1, 3, 0.75), Epoch(2, 2, 0.5), Epoch(3, 1, 0.75)}),
             Contains("whose test accuracy was 0.75"));
}

TEST_CASE("Epochs that nobody could evaluate neither count nor end the job") {
  v1::EvaluationConfig config;
  config.set_metric(kLoss);
  config.set_patience(2);
  CHECK(WhyStopped(config, {Epoch(1, 1), Missed(2), Missed(3), Epoch(4, 2)}) == "");
  CHECK(WhyStopped(config, {Epoch(1, 1), Epoch(2, 2), Epoch(3, 2), Missed(4)}) == "");
  CHECK_THAT(WhyStopped(config, {Epoch(1, 1), Epoch(2, 2), Missed(3), Epoch(4, 2)}),
             Contains("after epoch 4, since 2 evaluations"));
}

TEST_CASE("What makes a job wait for its evaluations") {
  v1::EvaluationConfig config;
  config.set_every_epochs(1);
  CHECK_FALSE(WaitsForEvaluations(config));
  config.set_patience(1);
  CHECK(WaitsForEvaluations(config));
  config.set_patience(0);
  config.set_keep_best(true);
  CHECK(WaitsForEvaluations(config));
  config.set_every_epochs(0);
  CHECK_FALSE(WaitsForEvaluations(config));
}

}  // namespace
}  // namespace weir
