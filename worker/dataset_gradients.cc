#include "worker/dataset_gradients.h"

#include <algorithm>
#include <utility>

#include "client/types.h"
#include "common/base/status_macros.h"
#include "worker/clipping.h"
#include "worker/local_rule.h"
#include "worker/local_steps.h"
#include "worker/slow_gradients.h"

namespace weir {

DatasetGradients::DatasetGradients(const v1::JobConfig& config, const Dataset& train, Replicas* replicas)
    : config_(config),
      train_(train),
      replicas_(replicas),
      order_(static_cast<int32_t>(train.size()), config.seed()) {}

uint64_t DatasetGradients::LikelyFirst(const Work& work) {
  if (first_ != work.first_example) {
    last_first_ = first_;
    first_ = work.first_example;
  }
  // Work mostly comes at even distances. Otherwise its examples and rows are fetched only when it comes.
  const uint64_t last = last_first_.value_or(work.first_example);
  return work.first_example + (work.first_example > last ? work.first_example - last : work.examples);
}

std::shared_ptr<WorkRows> DatasetGradients::RowsOf(const Work& work) {
  const std::vector<EmbeddingSource>& embeddings = replicas_->model().embeddings();
  if (embeddings.empty()) return nullptr;
  std::vector<int32_t> indexes(work.examples);
  order_.Fill(static_cast<int64_t>(work.first_example), absl::MakeSpan(indexes));
  auto rows = std::make_shared<WorkRows>();
  rows->first_example = work.first_example;
  rows->examples = work.examples;
  rows->tables = RowsFor(embeddings, train_, indexes);
  return rows;
}

std::optional<Work> DatasetGradients::LikelyNext(const Work& work) {
  Work next = work;
  next.first_example = LikelyFirst(work);
  const uint64_t distance = next.first_example - work.first_example;
  if (distance >= work.examples_left) return std::nullopt;
  next.examples_left = work.examples_left - distance;
  next.examples = std::min(work.examples, next.examples_left);
  return next;
}

absl::StatusOr<double> DatasetGradients::Compute(const Work& work, float* weights, float* gradient,
                                                 WorkRows* rows, const Traffic& traffic) {
  return CountCompute(&replicas_->compute_time(), traffic, [&](const Traffic& timed) {
    return ComputeTimed(work, weights, gradient, rows, timed);
  });
}

absl::StatusOr<double> DatasetGradients::ComputeTimed(const Work& work, float* weights, float* gradient,
                                                      WorkRows* rows, const Traffic& traffic) {
  indexes_.resize(work.examples);
  order_.Fill(static_cast<int64_t>(work.first_example), absl::MakeSpan(indexes_));
  next_indexes_.resize(work.examples);
  order_.Fill(static_cast<int64_t>(LikelyFirst(work)), absl::MakeSpan(next_indexes_));
  replicas_->model().Bind(weights, gradient);
  WEIR_ASSIGN_OR_RETURN(const double loss,
                        replicas_->ComputeGradient(train_, indexes_, config_.train().micro_batches(),
                                                   config_.seed(), work.batch, traffic, next_indexes_,
                                                   rows == nullptr ? nullptr : &rows->tables,
                                                   rows == nullptr ? nullptr : &rows->gradients));
  const v1::TrainConfig& train = config_.train();
  if (ClipsPushes(train)) {
    std::vector<absl::Span<float>> pieces = {replicas_->model().gradients()};
    if (rows != nullptr) {
      for (std::vector<float>& gradients : rows->gradients) pieces.push_back(absl::MakeSpan(gradients));
    }
    ClipValues(train.clip_value(), pieces);
    if (PushClipNorm(train) > 0) ClipToNorm(PushClipNorm(train), pieces);
  }
  return loss;
}

std::vector<ConstTensor> DatasetGradients::Gradient() {
  Model& model = replicas_->model();
  return model.rounds_gradients() ? TensorsOf(spec(), model.rounded_gradients())
                                  : TensorsOf(spec(), absl::Span<const float>(model.gradients()));
}

absl::StatusOr<std::unique_ptr<GradientComputer>> MakeGradients(const v1::JobConfig& config,
                                                                const Dataset& train, Replicas* replicas,
                                                                const Client& client) {
  std::unique_ptr<GradientComputer> gradients = std::make_unique<DatasetGradients>(config, train, replicas);
  // Each batch of local steps is slow, and not only the first.
  if (SlowGradients::Slow(config.debug()))
    gradients = std::make_unique<SlowGradients>(config, client.worker(), std::move(gradients));
  if (!TakesLocalSteps(config)) return gradients;
  return LocalSteps::Create(config, client.steps(), std::move(gradients), &replicas->compute_time());
}

}  // namespace weir
