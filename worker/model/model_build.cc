// How a Model is made from a config: its layers, their tensors, and all memory.
#include <algorithm>
#include <map>
#include <string>
#include <utility>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "absl/types/span.h"
#include "common/base/status_macros.h"
#include "common/config/job_config.h"
#include "proto/job_config.pb.h"
#include "worker/model/layer.h"
#include "worker/model/model.h"

namespace weir {
namespace {

using v1::LayerConfig;

bool TakesSeveral(LayerConfig::Type type) {
  return type == LayerConfig::LAYER_CONCAT || type == LayerConfig::LAYER_FACTORIZATION_MACHINE;
}

std::string Where(int layer) { return absl::StrCat("model.layers[", layer, "]"); }

// Which layer of a config takes the outputs of which: `inputs`, and what holds where they are left out. Not
// thread-safe. The arguments outlive it.
class LayerGraph {
 public:
  // The numbers of an example, as an input: a position and a name.
  static constexpr int kFeatures = -1;
  static constexpr char kFeaturesName[] = "features";

  LayerGraph(const v1::ModelConfig& config, const ModelInputs& inputs) : config_(config), inputs_(inputs) {}

  // The positions of the layers whose outputs the layer takes, or kFeatures; all are before it. Of a cross
  // layer x and x_0. Called for each layer, from the first to the last. InvalidArgument: names the field, the
  // value and the values allowed.
  absl::StatusOr<std::vector<int>> InputsOf(int layer) {
    WEIR_RETURN_IF_ERROR(CheckCount(layer));
    const LayerConfig& config = config_.layers(layer);
    const std::string name = LayerName(config, layer);
    if (name == kFeaturesName) {
      return absl::InvalidArgumentError(absl::StrCat(Where(layer), ".name is \"", kFeaturesName,
                                                     "\", which stands for the numbers of an example; use "
                                                     "another name"));
    }
    std::vector<int> inputs;
    for (int i = 0; i < config.inputs_size(); ++i) {
      const auto found = positions_.find(config.inputs(i));
      if (found == positions_.end() && config.inputs(i) != kFeaturesName) {
        std::vector<std::string> known = {kFeaturesName};
        for (int before = 0; before < layer; ++before)
          known.push_back(LayerName(config_.layers(before), before));
        return absl::InvalidArgumentError(
            absl::StrCat(Where(layer), ".inputs[", i, "] is \"", config.inputs(i),
                         "\", which is no layer before this one; there are ", absl::StrJoin(known, ", ")));
      }
      inputs.push_back(found == positions_.end() ? kFeatures : found->second);
    }
    if (inputs.empty() && config.type() != LayerConfig::LAYER_EMBEDDING) {
      inputs.push_back(layer == 0 ? kFeatures : layer - 1);
    }
    for (const int input : inputs) {
      if (input != kFeatures) {
        used_[static_cast<size_t>(input)] = true;
      } else if (inputs_.features == std::vector<int64_t>{0}) {
        return absl::InvalidArgumentError(
            absl::StrCat(Where(layer),
                         " takes the features, but the data has none: no column of data.columns has "
                         "the type number; name other inputs"));
      }
    }
    positions_[name] = layer;
    used_.push_back(false);
    first_.push_back(kFeatures);
    if (config.type() == LayerConfig::LAYER_CROSS) {
      const int x = inputs[0];
      const bool follows = x != kFeatures && config_.layers(x).type() == LayerConfig::LAYER_CROSS;
      first_.back() = follows ? first_[static_cast<size_t>(x)] : x;
      inputs.push_back(first_.back());
    }
    return inputs;
  }

  // After the last layer: InvalidArgument, if a layer's output or a table is not used.
  absl::Status CheckUse(absl::Span<const EmbeddingSource> embeddings) const {
    for (int i = 0; i + 1 < config_.layers_size(); ++i) {
      if (used_[static_cast<size_t>(i)]) continue;
      return absl::InvalidArgumentError(absl::StrCat(
          Where(i), " (\"", LayerName(config_.layers(i), i),
          "\"): no layer takes its output; name it in the inputs of a later layer, or take it out"));
    }
    std::vector<bool> used(inputs_.tables.size());
    for (const EmbeddingSource& source : embeddings) used[source.table] = true;
    for (size_t i = 0; i < used.size(); ++i) {
      if (used[i]) continue;
      return absl::InvalidArgumentError(
          absl::StrCat("tables[", i, "] (\"", inputs_.tables[i].name(),
                       "\"): no layer of type embedding takes its rows; take it out"));
    }
    return absl::OkStatus();
  }

 private:
  absl::Status CheckCount(int layer) const {
    const LayerConfig& config = config_.layers(layer);
    const int n = config.inputs_size();
    const auto error = [&](absl::string_view expected) {
      return absl::InvalidArgumentError(absl::StrCat(Where(layer), ".inputs: a layer of type ",
                                                     LayerWord(config.type()), " takes ", expected, ", got ",
                                                     n));
    };
    if (config.type() == LayerConfig::LAYER_EMBEDDING) {
      return n == 0 ? absl::OkStatus() : error("no inputs, but the keys of its column");
    }
    if (TakesSeveral(config.type())) {
      return n >= 2 ? absl::OkStatus() : error("two or more inputs, the names of layers or \"features\"");
    }
    return n <= 1 ? absl::OkStatus() : error("one input; put a layer of type concat between");
  }

  const v1::ModelConfig& config_;
  const ModelInputs& inputs_;
  std::map<std::string, int> positions_;  // of the layers so far, by name
  std::vector<bool> used_;
  std::vector<int> first_;  // of a cross layer: its x_0
};

constexpr auto kDevice = ComputeBackend::Memory::kDevice;
constexpr auto kHost = ComputeBackend::Memory::kHost;

size_t Index(int position) { return static_cast<size_t>(position); }

}  // namespace

absl::StatusOr<std::unique_ptr<Model>> Model::Create(const v1::ModelConfig& config, const ModelInputs& inputs,
                                                     int64_t outputs, int64_t max_batch,
                                                     ComputeBackend* backend, const DeviceOptions& options) {
  std::unique_ptr<Model> model(new Model(config.loss(), max_batch, backend, options));
  WEIR_RETURN_IF_ERROR(model->BuildStages(config, inputs, outputs));
  for (int i = 0; i < config.layers_size() && !backend->unified(); ++i) {
    if (!IsForCpuOnly(config.layers(i).type())) continue;
    return absl::InvalidArgumentError(absl::StrCat("model.layers[", i, "] (",
                                                   LayerWord(config.layers(i).type()),
                                                   ") is for the CPU only, and this worker computes on ",
                                                   backend->name(), "; start it with --device=cpu"));
  }
  WEIR_RETURN_IF_ERROR(model->TakeMemory());
  return model;
}

absl::StatusOr<ModelNeeds> Model::Check(const v1::ModelConfig& config, const ModelInputs& inputs,
                                        std::optional<int64_t> outputs) {
  Model model(config.loss(), 1, nullptr, DeviceOptions());
  WEIR_RETURN_IF_ERROR(model.BuildStages(config, inputs, outputs));
  ModelNeeds needs;
  for (const Stage& stage : model.stages_) {
    // An output, and as much again for layers that keep where their output comes from.
    needs.floats_per_example += 2 * stage.output_elements;
    needs.scratch_floats = std::max(needs.scratch_floats, stage.layer->scratch_elements());
  }
  for (const int64_t elements : model.between_elements_) needs.floats_per_example += elements;
  needs.spec = std::move(model.spec_);
  return needs;
}

bool Model::NeedsCpu(const v1::ModelConfig& config) {
  return std::any_of(config.layers().begin(), config.layers().end(),
                     [](const v1::LayerConfig& layer) { return IsForCpuOnly(layer.type()); });
}

absl::Status Model::BuildStages(const v1::ModelConfig& config, const ModelInputs& inputs,
                                std::optional<int64_t> wanted) {
  LayerGraph graph(config, inputs);
  for (int i = 0; i < config.layers_size(); ++i) {
    Stage stage;
    WEIR_ASSIGN_OR_RETURN(stage.inputs, graph.InputsOf(i));
    std::vector<std::vector<int64_t>> shapes;
    for (int& input : stage.inputs) {
      shapes.push_back(input == kFeatures ? inputs.features : stages_[Index(input)].layer->output_shape());
      while (input != kFeatures && stages_[Index(input)].layer->is_view()) {
        input = stages_[Index(input)].inputs[0];
      }
      stage.trained |= input != kFeatures && stages_[Index(input)].trained;
    }
    WEIR_ASSIGN_OR_RETURN(stage.layer, MakeLayer(config.layers(i), i, shapes, inputs));
    stage.output_elements = ShapeElements(stage.layer->output_shape());
    stage.first_tensor = spec_.tensors.size();
    stage.offset = spec_.elements();
    for (TensorSpec& tensor : stage.layer->Tensors()) spec_.tensors.push_back(std::move(tensor));
    stage.tensors = spec_.tensors.size() - stage.first_tensor;
    stage.elements = spec_.elements() - stage.offset;
    if (const auto source = stage.layer->embedding()) embeddings_.push_back(*source);
    stage.trained |= stage.tensors > 0 || stage.layer->embedding().has_value();
    stages_.push_back(std::move(stage));
  }
  WEIR_RETURN_IF_ERROR(graph.CheckUse(embeddings_));
  const std::vector<int64_t>& shape = stages_.back().layer->output_shape();
  const int last = config.layers_size() - 1;
  const int64_t outputs = wanted.value_or(shape.size() == 1 ? shape[0] : 1);
  if (shape != std::vector<int64_t>{outputs}) {
    return absl::InvalidArgumentError(
        absl::StrCat("model.layers[", last, "] is the last and gives the shape ", ShapeString(shape),
                     ", but the data needs [", outputs, "]",
                     config.loss() == v1::ModelConfig::LOSS_SOFTMAX_CROSS_ENTROPY
                         ? absl::StrCat(" (one logit for each class: the largest label is ", outputs - 1,
                                        ", or data.classes is ", outputs, ")")
                         : " (the prediction, or the logit)",
                     "; end with a dense layer of ", outputs, " units",
                     config.loss() == v1::ModelConfig::LOSS_SOFTMAX_CROSS_ENTROPY
                         ? ", or set data.classes, which finds labels that are too large"
                         : ""));
  }
  const absl::Status status = spec_.Validate();
  if (!status.ok()) return absl::InvalidArgumentError(absl::StrCat("model.layers: ", status.message()));
  elements_ = static_cast<size_t>(spec_.elements());
  input_elements_ = ShapeElements(inputs.features);
  outputs_ = outputs;
  while (!stages_[first_trained_].trained) ++first_trained_;
  PlanGradients();
  return absl::OkStatus();
}

void Model::PlanGradients() {
  std::vector<bool> taken;
  const auto take = [&](int64_t elements) {
    size_t buffer = 0;
    while (buffer < taken.size() && taken[buffer]) ++buffer;
    if (buffer == taken.size()) {
      taken.push_back(false);
      between_elements_.push_back(0);
    }
    taken[buffer] = true;
    between_elements_[buffer] = std::max(between_elements_[buffer], elements);
    return static_cast<int>(buffer);
  };
  int last = static_cast<int>(stages_.size()) - 1;
  while (last != kFeatures && stages_[Index(last)].layer->is_view()) last = stages_[Index(last)].inputs[0];
  stages_[Index(last)].gradient = take(stages_.back().output_elements);
  for (size_t i = stages_.size(); i-- > first_trained_;) {
    Stage& stage = stages_[i];
    if (!stage.trained || stage.layer->is_view()) continue;
    std::vector<int> sums;
    for (const int input : stage.inputs) {
      InputGradient& to = stage.input_gradients.emplace_back();
      if (input == kFeatures || !stages_[Index(input)].trained) continue;
      Stage& from = stages_[Index(input)];
      to.buffer = take(from.output_elements);
      to.adds = from.gradient >= 0;
      if (to.adds) {
        sums.push_back(to.buffer);
      } else {
        from.gradient = to.buffer;
      }
    }
    for (const int buffer : sums) taken[Index(buffer)] = false;
    taken[Index(stage.gradient)] = false;
  }
}

template <typename T>
absl::Status Model::Mirrored<T>::Take(ComputeBackend* backend, int64_t n) {
  WEIR_ASSIGN_OR_RETURN(device, Buffer<T>::Make(backend, kDevice, n));
  if (backend->unified()) return absl::OkStatus();
  WEIR_ASSIGN_OR_RETURN(staged, Buffer<T>::Make(backend, kHost, n));
  return absl::OkStatus();
}

absl::Status Model::TakeMemory() {
  const int64_t parameters = spec_.elements();
  WEIR_RETURN_IF_ERROR(weights_.Take(backend_, parameters));
  WEIR_RETURN_IF_ERROR(gradients_.Take(backend_, parameters));
  WEIR_RETURN_IF_ERROR(losses_.Take(backend_, max_batch_));
  WEIR_RETURN_IF_ERROR(predictions_.Take(backend_, max_batch_));
  for (Stage& stage : stages_) {
    WEIR_RETURN_IF_ERROR(stage.layer->Reserve(backend_, max_batch_));
    if (stage.layer->is_view()) continue;
    WEIR_ASSIGN_OR_RETURN(stage.output,
                          Buffer<float>::Make(backend_, kDevice, max_batch_ * stage.output_elements));
  }
  for (const int64_t elements : between_elements_) {
    WEIR_ASSIGN_OR_RETURN(between_.emplace_back(),
                          Buffer<float>::Make(backend_, kDevice, max_batch_ * elements));
  }
  if (rounds_gradients_) {
    WEIR_ASSIGN_OR_RETURN(rounded_gradients_, Buffer<uint16_t>::Make(backend_, kDevice, parameters));
  }
  if (keeps_weights_ahead_) {
    WEIR_ASSIGN_OR_RETURN(weights_ahead_, Buffer<float>::Make(backend_, kDevice, parameters));
  }
  if (!backend_->unified()) {
    WEIR_ASSIGN_OR_RETURN(staged_logits_, Buffer<float>::Make(backend_, kHost, max_batch_ * outputs_));
    for (DeviceBatch& batch : batches_) {
      WEIR_RETURN_IF_ERROR(batch.features.Take(backend_, max_batch_ * input_elements_));
      WEIR_RETURN_IF_ERROR(batch.targets.Take(backend_, max_batch_));
      WEIR_RETURN_IF_ERROR(batch.labels.Take(backend_, max_batch_));
    }
  }
  Bind(weights_.host(), gradients_.host());
  ZeroGradients();
  return absl::OkStatus();
}

}  // namespace weir
