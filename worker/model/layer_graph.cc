#include "worker/model/layer_graph.h"

#include <utility>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "common/base/status_macros.h"

namespace weir {
namespace {

using v1::LayerConfig;

bool TakesSeveral(LayerConfig::Type type) {
  return type == LayerConfig::LAYER_CONCAT || type == LayerConfig::LAYER_FACTORIZATION_MACHINE;
}

std::string Where(int layer) { return absl::StrCat("model.layers[", layer, "]"); }

}  // namespace

absl::Status LayerGraph::CheckCount(int layer) const {
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

absl::StatusOr<std::vector<int>> LayerGraph::InputsOf(int layer) {
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
      return absl::InvalidArgumentError(absl::StrCat(Where(layer), ".inputs[", i, "] is \"", config.inputs(i),
                                                     "\", which is no layer before this one; there are ",
                                                     absl::StrJoin(known, ", ")));
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

absl::Status LayerGraph::CheckUse(absl::Span<const EmbeddingSource> embeddings) const {
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

}  // namespace weir
