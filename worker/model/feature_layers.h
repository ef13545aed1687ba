#pragma once

#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "common/model/model_spec.h"
#include "worker/model/layer.h"

// The layers of models of sparse features. They compute in the host's memory (IsForCpuOnly). The config
// (proto/job_config.proto, LayerConfig::Type) says what each does.
namespace weir {

// mean: a mean instead of a sum of the rows. Adds the gradients of rows in the order of the examples.
std::unique_ptr<Layer> MakeEmbeddingLayer(const EmbeddingSource& source, bool mean);
// The shapes are flat.
std::unique_ptr<Layer> MakeConcat(const std::vector<std::vector<int64_t>>& shapes);
// The inputs are x and x_0, of `elements` values each.
std::unique_ptr<Layer> MakeCross(const std::string& name, int64_t elements, Initializer init);
// `inputs` embeddings of `dim` values each, the linear weight first.
std::unique_ptr<Layer> MakeFactorizationMachine(const std::string& name, int64_t inputs, int64_t dim);

}  // namespace weir
