#include "worker/model/model.h"

#include <algorithm>
#include <numeric>
#include <utility>

#include "absl/strings/str_cat.h"
#include "common/status_macros.h"

namespace weir {
namespace {

constexpr auto kDevice = ComputeBackend::Memory::kDevice;
constexpr auto kHost = ComputeBackend::Memory::kHost;

}  // namespace

absl::StatusOr<std::unique_ptr<Model>> Model::Create(const v1::ModelConfig& config,
                                                     const std::vector<int64_t>& input_shape, int64_t outputs,
                                                     int64_t max_batch, ComputeBackend* backend) {
  std::unique_ptr<Model> model(new Model(config.loss(), max_batch, backend));
  WEIR_RETURN_IF_ERROR(model->BuildStages(config, input_shape, outputs));
  WEIR_RETURN_IF_ERROR(model->TakeMemory());
  return model;
}

absl::Status Model::BuildStages(const v1::ModelConfig& config, const std::vector<int64_t>& input_shape,
                                int64_t outputs) {
  std::vector<int64_t> shape = input_shape;
  for (int i = 0; i < config.layers_size(); ++i) {
    Stage stage;
    WEIR_ASSIGN_OR_RETURN(stage.layer, MakeLayer(config.layers(i), i, shape));
    shape = stage.layer->output_shape();
    stage.output_elements = ShapeElements(shape);
    stage.first_tensor = spec_.tensors.size();
    stage.offset = spec_.elements();
    for (TensorSpec& tensor : stage.layer->Tensors()) spec_.tensors.push_back(std::move(tensor));
    stage.tensors = spec_.tensors.size() - stage.first_tensor;
    stage.elements = spec_.elements() - stage.offset;
    stages_.push_back(std::move(stage));
  }
  const int last = config.layers_size() - 1;
  if (shape != std::vector<int64_t>{outputs}) {
    return absl::InvalidArgumentError(absl::StrCat(
        "model.layers[", last, "] is the last and gives the shape ", ShapeString(shape),
        ", but the data needs [", outputs, "]",
        config.loss() == v1::ModelConfig::LOSS_SOFTMAX_CROSS_ENTROPY ? " (one logit for each class)"
                                                                     : " (the prediction)",
        "; end with a dense layer of ", outputs, " units"));
  }
  const absl::Status status = spec_.Validate();
  if (!status.ok()) return absl::InvalidArgumentError(absl::StrCat("model.layers: ", status.message()));
  elements_ = static_cast<size_t>(spec_.elements());
  input_elements_ = ShapeElements(input_shape);
  outputs_ = outputs;
  while (stages_[first_trained_].tensors == 0) ++first_trained_;
  return absl::OkStatus();
}

absl::Status Model::TakeMemory() {
  const int64_t parameters = spec_.elements();
  WEIR_ASSIGN_OR_RETURN(weights_, Buffer<float>::Make(backend_, kDevice, parameters));
  WEIR_ASSIGN_OR_RETURN(gradients_, Buffer<float>::Make(backend_, kDevice, parameters));
  WEIR_ASSIGN_OR_RETURN(losses_, Buffer<float>::Make(backend_, kDevice, max_batch_));
  WEIR_ASSIGN_OR_RETURN(predictions_, Buffer<int32_t>::Make(backend_, kDevice, max_batch_));
  int64_t widest = 0;
  for (Stage& stage : stages_) {
    WEIR_RETURN_IF_ERROR(stage.layer->Reserve(backend_, max_batch_));
    widest = std::max(widest, stage.output_elements);
    if (stage.layer->is_view()) continue;
    WEIR_ASSIGN_OR_RETURN(stage.output,
                          Buffer<float>::Make(backend_, kDevice, max_batch_ * stage.output_elements));
  }
  for (Buffer<float>& upstream : upstream_) {
    WEIR_ASSIGN_OR_RETURN(upstream, Buffer<float>::Make(backend_, kDevice, max_batch_ * widest));
  }
  if (!backend_->unified()) {
    WEIR_ASSIGN_OR_RETURN(staged_weights_, Buffer<float>::Make(backend_, kHost, parameters));
    WEIR_ASSIGN_OR_RETURN(staged_gradients_, Buffer<float>::Make(backend_, kHost, parameters));
    WEIR_ASSIGN_OR_RETURN(staged_losses_, Buffer<float>::Make(backend_, kHost, max_batch_));
    WEIR_ASSIGN_OR_RETURN(staged_predictions_, Buffer<int32_t>::Make(backend_, kHost, max_batch_));
    WEIR_ASSIGN_OR_RETURN(features_, Buffer<float>::Make(backend_, kDevice, max_batch_ * input_elements_));
    WEIR_ASSIGN_OR_RETURN(targets_, Buffer<float>::Make(backend_, kDevice, max_batch_));
    WEIR_ASSIGN_OR_RETURN(labels_, Buffer<int32_t>::Make(backend_, kDevice, max_batch_));
  }
  ZeroGradients();
  return absl::OkStatus();
}

absl::Span<float> Model::weights() { return {OnHost(weights_, staged_weights_), elements_}; }

absl::Span<float> Model::gradients() { return {OnHost(gradients_, staged_gradients_), elements_}; }

void Model::ZeroGradients() {
  backend_->Fill(spec_.elements(), 0, gradients_.get());
  if (!backend_->unified()) std::fill(gradients().begin(), gradients().end(), 0.0f);
}

template <typename T>
T* Model::OnHost(const Buffer<T>& device, const Buffer<T>& staged) const {
  return backend_->unified() ? device.get() : staged.get();
}

template <typename T>
const T* Model::OnDevice(const std::vector<T>& host, const Buffer<T>& device) {
  if (backend_->unified()) return host.data();
  backend_->CopyToDevice(device.get(), host.data(), host.size() * sizeof(T));
  return device.get();
}

void Model::UploadWeights() {
  if (backend_->unified()) return;
  backend_->CopyToDevice(weights_.get(), staged_weights_.get(), elements_ * sizeof(float));
}

void Model::Forward(const Batch& batch, const Pass& pass, float gradient_scale) {
  const float* x = OnDevice(batch.features, features_);
  for (Stage& stage : stages_) {
    stage.x = x;
    stage.y = stage.layer->is_view() ? x : stage.output.get();
    if (!stage.layer->is_view()) {
      stage.layer->Forward(backend_, pass, weights_.get() + stage.offset, x, stage.output.get());
    }
    x = stage.y;
  }
  float* const slope = pass.training ? upstream_[0].get() : nullptr;
  if (loss_ == v1::ModelConfig::LOSS_MEAN_SQUARED_ERROR) {
    const float* targets = OnDevice(batch.targets, targets_);
    backend_->MeanSquaredError(pass.n, outputs_, x, targets, gradient_scale, losses_.get(), slope);
  } else {
    const int32_t* labels = OnDevice(batch.labels, labels_);
    backend_->SoftmaxCrossEntropy(pass.n, outputs_, x, labels, gradient_scale, losses_.get(), slope);
  }
}

absl::Status Model::Backward(const Pass& pass, const GradientReady& ready) {
  const auto report = [&](const Stage& stage) {
    for (size_t i = stage.tensors; ready && i > 0; --i) ready(stage.first_tensor + i - 1);
  };
  // On a device of its own, a stage's gradient is waited for only when the next stage's work is queued.
  const Stage* copied = nullptr;
  uint64_t mark = 0;
  const float* dy = upstream_[0].get();
  for (size_t i = stages_.size(), turn = 1; i-- > first_trained_;) {
    Stage& stage = stages_[i];
    if (stage.layer->is_view()) continue;
    float* const dx = i > first_trained_ ? upstream_[turn].get() : nullptr;
    stage.layer->Backward(backend_, pass, weights_.get() + stage.offset, stage.x, stage.y, dy, dx,
                          gradients_.get() + stage.offset);
    dy = dx;
    turn = 1 - turn;
    if (stage.tensors == 0) continue;
    if (backend_->unified()) {
      report(stage);
      continue;
    }
    if (copied != nullptr) {
      WEIR_RETURN_IF_ERROR(backend_->Wait(mark));
      report(*copied);
    }
    backend_->CopyToHost(staged_gradients_.get() + stage.offset, gradients_.get() + stage.offset,
                         static_cast<size_t>(stage.elements) * sizeof(float));
    mark = backend_->Record();
    copied = &stage;
  }
  if (copied != nullptr) {
    WEIR_RETURN_IF_ERROR(backend_->Wait(mark));
    report(*copied);
  }
  return absl::OkStatus();
}

absl::StatusOr<double> Model::SumLosses(int64_t n) {
  if (!backend_->unified()) {
    backend_->CopyToHost(staged_losses_.get(), losses_.get(), static_cast<size_t>(n) * sizeof(float));
  }
  WEIR_RETURN_IF_ERROR(backend_->Wait(backend_->Record()));
  const float* losses = OnHost(losses_, staged_losses_);
  return std::accumulate(losses, losses + n, 0.0);
}

absl::StatusOr<double> Model::ForwardBackward(const Batch& batch, int64_t divisor,
                                              const RandomContext& random, const GradientReady& ready) {
  const Pass pass{batch.n, /*training=*/true, random};
  UploadWeights();
  Forward(batch, pass, 1.0f / static_cast<float>(divisor));
  WEIR_RETURN_IF_ERROR(Backward(pass, ready));
  return SumLosses(batch.n);
}

absl::StatusOr<Evaluation> Model::Evaluate(const Dataset& dataset) {
  Evaluation result;
  result.examples = dataset.size();
  int64_t right = 0;
  Batch batch;
  std::vector<int32_t> indexes;
  UploadWeights();
  for (int64_t first = 0; first < dataset.size(); first += batch.n) {
    indexes.resize(static_cast<size_t>(std::min(max_batch_, dataset.size() - first)));
    std::iota(indexes.begin(), indexes.end(), static_cast<int32_t>(first));
    dataset.Gather(indexes, &batch);
    Forward(batch, Pass{batch.n, /*training=*/false, {}}, 0);
    if (dataset.classes() > 0) {
      backend_->Argmax(batch.n, outputs_, stages_.back().y, predictions_.get());
      if (!backend_->unified()) {
        backend_->CopyToHost(staged_predictions_.get(), predictions_.get(), indexes.size() * sizeof(int32_t));
      }
    }
    WEIR_ASSIGN_OR_RETURN(const double losses, SumLosses(batch.n));
    result.loss += losses;
    const int32_t* predictions = OnHost(predictions_, staged_predictions_);
    for (size_t i = 0; i < batch.labels.size(); ++i) right += predictions[i] == batch.labels[i];
  }
  const double n = static_cast<double>(std::max<int64_t>(1, dataset.size()));
  result.loss /= n;
  if (dataset.classes() > 0) result.accuracy = static_cast<double>(right) / n;
  return result;
}

}  // namespace weir
