#include "tests/integration/serial_reference.h"

#include <algorithm>
#include <cmath>
#include <memory>
#include <utility>

#include "common/base/checksums.h"
#include "common/base/status_macros.h"
#include "common/optimizer/kernels.h"
#include "common/optimizer/squares.h"
#include "worker/compute/compute_backend.h"
#include "worker/data/dataset.h"
#include "worker/model/model.h"

namespace weir {

absl::StatusOr<SerialWeights> SerialWeights::Create(const v1::JobConfig& config, const ModelSpec& model,
                                                    uint64_t total_steps) {
  WEIR_ASSIGN_OR_RETURN(const Kernels* kernels, KernelsFor(KernelLevel::kPlain));
  WEIR_ASSIGN_OR_RETURN(Optimizer optimizer, Optimizer::Create(config.optimizer(), *kernels));
  WEIR_ASSIGN_OR_RETURN(LearningRateSchedule schedule,
                        LearningRateSchedule::Create(config.optimizer().learning_rate(),
                                                     config.optimizer().schedule(), total_steps));
  WEIR_ASSIGN_OR_RETURN(std::vector<TensorSettings> settings, ResolveGroups(config.optimizer(), model));
  SerialWeights weights(model, std::move(optimizer), schedule, std::move(settings));
  if (config.train().clip() == v1::TrainConfig::CLIP_MEAN) weights.max_norm_ = config.train().clip_norm();
  for (size_t i = 0; i < model.tensors.size(); ++i) {
    const absl::Span<float> tensor =
        absl::MakeSpan(weights.values_).subspan(model.offset(i), model.tensors[i].elements());
    FillInitialValues(config.seed(), model.tensors[i], 0, tensor);
  }
  return weights;
}

SerialWeights::SerialWeights(ModelSpec model, Optimizer optimizer, LearningRateSchedule schedule,
                             std::vector<TensorSettings> settings)
    : model_(std::move(model)),
      optimizer_(std::move(optimizer)),
      schedule_(schedule),
      settings_(std::move(settings)),
      values_(model_.elements()) {
  slots_.assign(optimizer_.slots().size(), std::vector<float>(values_.size()));
}

void SerialWeights::Restart(absl::Span<const float> values, uint64_t step, bool keeps_state) {
  values_.assign(values.begin(), values.end());
  if (!keeps_state) {
    for (std::vector<float>& slot : slots_) std::fill(slot.begin(), slot.end(), 0.0f);
    steps_ = 0;
  }
  first_step_ = step - steps_;
}

void SerialWeights::Step(const std::vector<Part>& parts) {
  uint64_t examples = 0;
  for (const Part& part : parts) examples += part.examples;
  std::vector<float> mean(values_.size());
  for (size_t i = 0; i < mean.size(); ++i) {
    for (size_t p = 0; p < parts.size(); ++p) {
      const float share = static_cast<float>(parts[p].examples) / static_cast<float>(examples);
      const float term = share * parts[p].gradient[i];
      mean[i] = p == 0 ? term : mean[i] + term;
    }
  }
  if (max_norm_ > 0) {
    const double norm = NormOf(0, mean);
    if (norm > max_norm_) {
      for (float& value : mean) value *= static_cast<float>(max_norm_ / norm);
    }
  }
  const double rate = schedule_.Rate(static_cast<double>(first_step_ + steps_++));
  for (size_t tensor = 0; tensor < model_.tensors.size(); ++tensor) {
    if (settings_[tensor].frozen) continue;
    const int64_t first = model_.offset(tensor);
    ApplyArgs args;
    args.n = static_cast<size_t>(model_.tensors[tensor].elements());
    args.weights_in = args.weights_out = &values_[first];
    args.gradient = &mean[first];
    for (size_t slot = 0; slot < slots_.size(); ++slot) {
      args.slots_in[slot] = args.slots_out[slot] = &slots_[slot][first];
    }
    args.weight_decay = settings_[tensor].weight_decay;
    args.l2 = settings_[tensor].l2;
    args.clip_weights = settings_[tensor].clip_weights;
    args.t = steps_;
    const double by_norms = optimizer_.scales_by_norms() ? FactorOf(args, first) : 1;
    args.learning_rate = rate * by_norms * settings_[tensor].learning_rate_factor;
    optimizer_.Apply(args);
  }
}

double SerialWeights::NormOf(int64_t first, absl::Span<const float> values) {
  ExactSum sum;
  AddSquares(**KernelsFor(KernelLevel::kPlain), values.data(), first, values.size(), &sum);
  return std::sqrt(sum.value());
}

double SerialWeights::FactorOf(ApplyArgs args, int64_t first) const {
  std::vector<float> update(args.n);
  std::vector<std::vector<float>> slots(slots_.size(), update);
  args.weights_out = update.data();
  for (size_t slot = 0; slot < slots.size(); ++slot) args.slots_out[slot] = slots[slot].data();
  optimizer_.Update(args);
  const double of_weights = NormOf(first, {args.weights_in, args.n}), of_update = NormOf(first, update);
  return of_weights > 0 && of_update > 0 ? of_weights / of_update : 1;
}

absl::StatusOr<SerialRun> TrainSerially(const v1::JobConfig& config, const Dataset& train) {
  const uint64_t batch_size = config.data().batch_size();
  const uint64_t local_steps = config.local().steps(), part_size = batch_size * local_steps;
  const uint64_t step_size = part_size * config.consistency().parts();
  const uint64_t examples =
      config.train().has_steps() ? config.train().steps() * step_size
      : config.train().has_examples()
          ? config.train().examples()
          : static_cast<uint64_t>(std::round(config.train().epochs() * static_cast<double>(train.size())));

  WEIR_ASSIGN_OR_RETURN(const auto backend, MakeComputeBackend({"cpu"}));
  WEIR_ASSIGN_OR_RETURN(const auto model, Model::Create(config.model(), train.shape(), train.outputs(),
                                                        batch_size, backend.get()));
  const uint64_t steps = (examples + step_size - 1) / step_size;
  WEIR_ASSIGN_OR_RETURN(auto weights, SerialWeights::Create(config, model->spec(), steps));
  v1::JobConfig inner = config;
  inner.mutable_train()->clear_clip();
  if (config.local().has_inner()) *inner.mutable_optimizer() = config.local().inner();
  WEIR_ASSIGN_OR_RETURN(const auto new_local,
                        SerialWeights::Create(inner, model->spec(), steps * local_steps));
  std::vector<SerialWeights> locals(config.consistency().parts(), new_local);
  ExampleOrder order(static_cast<int32_t>(train.size()), config.seed());
  Batch batch;
  // model->gradients() at these weights, over n examples from this one on.
  const auto compute = [&](absl::Span<const float> at, uint64_t first, uint64_t n) -> absl::Status {
    std::copy(at.begin(), at.end(), model->weights().begin());
    const uint64_t pieces = config.train().micro_batches();
    const uint64_t piece = (n + pieces - 1) / pieces;
    model->ZeroGradients();
    for (uint64_t done = 0; done < n; done += piece) {
      std::vector<int32_t> indexes(std::min(piece, n - done));
      order.Fill(static_cast<int64_t>(first + done), absl::MakeSpan(indexes));
      train.Gather(indexes, &batch);
      const RandomContext random{config.seed(), first / batch_size, static_cast<int64_t>(done)};
      WEIR_RETURN_IF_ERROR(model->ForwardBackward(batch, static_cast<int64_t>(n), random).status());
    }
    ClipValues(config.train().clip_value(), {model->gradients()});
    if (config.train().clip() != v1::TrainConfig::CLIP_MEAN) {
      ClipToNorm(config.train().clip_norm(), {model->gradients()});
    }
    return absl::OkStatus();
  };
  for (uint64_t step = 0; step < examples; step += step_size) {
    std::vector<SerialWeights::Part> parts;
    for (uint64_t part = step; part < std::min(step + step_size, examples); part += part_size) {
      const uint64_t end = std::min(part + part_size, examples);
      SerialWeights& local = locals[parts.size()];
      local.Restart(weights.values(), step / step_size * local_steps, config.local().keep_state());
      for (uint64_t first = part; first < end; first += batch_size) {
        const uint64_t n = std::min(batch_size, end - first);
        WEIR_RETURN_IF_ERROR(compute(local.values(), first, n));
        if (local_steps > 1) local.Step({{{model->gradients().begin(), model->gradients().end()}, n}});
      }
      std::vector<float> push(model->gradients().begin(), model->gradients().end());
      for (size_t i = 0; local_steps > 1 && i < push.size(); ++i) {
        push[i] = weights.values()[i] - local.values()[i];
      }
      parts.push_back({std::move(push), end - part});
    }
    weights.Step(parts);
  }
  SerialRun run;
  run.weights.assign(weights.values().begin(), weights.values().end());
  run.weights_sha256 = WeightsSha256(run.weights);
  run.steps = weights.steps();
  return run;
}

std::string WeightsSha256(absl::Span<const float> weights) {
  Sha256 hash;
  hash.Update(weights.data(), weights.size() * sizeof(float));
  return hash.Hex();
}

}  // namespace weir
