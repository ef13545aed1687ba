#include "worker/dataset_gradients.h"

#include "client/flat_tensors.h"
#include "common/base/status_macros.h"
#include "worker/model/gradient_norm.h"

namespace weir {

DatasetGradients::DatasetGradients(const v1::JobConfig& config, const Dataset& train, Replicas* replicas)
    : config_(config),
      train_(train),
      replicas_(replicas),
      order_(static_cast<int32_t>(train.size()), config.seed()) {}

absl::StatusOr<double> DatasetGradients::Compute(const Work& work, float* weights, float* gradient,
                                                 const Traffic& traffic) {
  indexes_.resize(work.examples);
  order_.Fill(static_cast<int64_t>(work.first_example), absl::MakeSpan(indexes_));
  // Work mostly comes at even distances. Otherwise its examples are gathered only when it comes.
  const uint64_t last = last_first_.value_or(work.first_example);
  const uint64_t stride = work.first_example > last ? work.first_example - last : work.examples;
  last_first_ = work.first_example;
  next_indexes_.resize(work.examples);
  order_.Fill(static_cast<int64_t>(work.first_example + stride), absl::MakeSpan(next_indexes_));
  replicas_->model().Bind(weights, gradient);
  WEIR_ASSIGN_OR_RETURN(const double loss,
                        replicas_->ComputeGradient(train_, indexes_, config_.train().micro_batches(),
                                                   config_.seed(), work.batch, traffic, next_indexes_));
  if (config_.train().clip_norm() > 0) {
    ClipToNorm(config_.train().clip_norm(), replicas_->model().gradients());
  }
  return loss;
}

std::vector<ConstTensor> DatasetGradients::Gradient() {
  Model& model = replicas_->model();
  return model.rounds_gradients() ? TensorsOf(spec(), model.rounded_gradients())
                                  : TensorsOf(spec(), absl::Span<const float>(model.gradients()));
}

}  // namespace weir
