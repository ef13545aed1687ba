#pragma once

#include <map>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/types/span.h"
#include "proto/job_config.pb.h"
#include "worker/model/layer.h"

namespace weir {

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
  absl::StatusOr<std::vector<int>> InputsOf(int layer);
  // After the last layer: InvalidArgument, if a layer's output or a table is not used.
  absl::Status CheckUse(absl::Span<const EmbeddingSource> embeddings) const;

 private:
  absl::Status CheckCount(int layer) const;

  const v1::ModelConfig& config_;
  const ModelInputs& inputs_;
  std::map<std::string, int> positions_;  // of the layers so far, by name
  std::vector<bool> used_;
  std::vector<int> first_;  // of a cross layer: its x_0
};

}  // namespace weir
