#pragma once

#include <cstdint>
#include <initializer_list>
#include <memory>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/types/span.h"
#include "common/model/model_spec.h"
#include "proto/job_config.pb.h"
#include "worker/compute/compute_backend.h"
#include "worker/data/dataset.h"
#include "worker/model/traffic.h"

namespace weir {

// The numbers that all random choices of a forward pass depend on, besides the layer's name.
struct RandomContext {
  uint64_t seed = 0;
  uint64_t batch = 0;
  // The position of the first example of this pass in the batch: masks do not depend on how a batch is cut
  // into micro-batches.
  int64_t first_example = 0;
};

struct Pass {
  int64_t n = 0;  // examples
  bool training = false;
  RandomContext random;
  // For embeddings, in host memory: the examples' keys, the rows that they name, and where the gradients of
  // these rows are added in training.
  const Batch* batch = nullptr;
  const std::vector<TableRows>* rows = nullptr;
  RowGradientValues* row_gradients = nullptr;
};

// The inputs of a model: one example, and the tables that its layers may name.
struct ModelInputs {
  // Without columns of keys.
  ModelInputs(std::vector<int64_t> features) : features(std::move(features)) {}
  ModelInputs(std::initializer_list<int64_t> features) : features(features) {}

  std::vector<int64_t> features;     // the shape of the numbers; [0]: there are none
  std::vector<std::string> columns;  // of keys
  std::vector<v1::TableConfig> tables;
};

// Requires: `config` has passed the job config's checks. features: the shape of an example's numbers.
ModelInputs ModelInputsOf(const v1::JobConfig& config, std::vector<int64_t> features);

// One layer of a model: its shapes, its tensors, forward and backward. A layer knows nothing about where its
// parameters come from: `weights` and `gradients` are its tensors end to end in device memory. Its inputs x
// and its output y [n, shape...] and their gradients dx, dy are the model's. Backward follows the Forward of
// the same pass. Not thread-safe.
class Layer {
 public:
  using Inputs = absl::Span<const float* const>;
  using Gradients = absl::Span<float* const>;

  explicit Layer(std::vector<int64_t> output_shape) : shape_(std::move(output_shape)) {}
  virtual ~Layer() = default;

  // The shape of one example.
  const std::vector<int64_t>& output_shape() const { return shape_; }
  virtual std::vector<TensorSpec> Tensors() const { return {}; }
  // Returns whether y is x with another shape; then Forward and Backward are not called.
  virtual bool is_view() const { return false; }
  // Where the layer has its rows from, if it is an embedding.
  virtual std::optional<EmbeddingSource> embedding() const { return std::nullopt; }
  // Returns whether passes over the same memory differ in more than the values there: in random draws.
  virtual bool is_random() const { return false; }
  // The floats of scratch memory that a backend takes for the layer's passes by itself, whatever the batch.
  virtual int64_t scratch_elements() const { return 0; }
  // Takes the scratch memory that a pass of up to max_batch examples needs.
  virtual absl::Status Reserve(ComputeBackend* backend, int64_t max_batch) { return absl::OkStatus(); }

  virtual void Forward(ComputeBackend* backend, const Pass& pass, const float* weights, Inputs x,
                       float* y) = 0;
  // Adds to `gradients`; overwrites each dx, which is null where it is not needed.
  virtual void Backward(ComputeBackend* backend, const Pass& pass, const float* weights, Inputs x,
                        const float* y, const float* dy, Gradients dx, float* gradients) = 0;

 protected:
  const std::vector<int64_t> shape_;
};

// The layers of models of sparse features (feature_layers.cc). They compute in the host's memory
// (IsForCpuOnly). The config (proto/job_config.proto, LayerConfig::Type) says what each does.

// mean: a mean instead of a sum of the rows. Adds the gradients of rows in the order of the examples.
std::unique_ptr<Layer> MakeEmbeddingLayer(const EmbeddingSource& source, bool mean);
// The shapes are flat.
std::unique_ptr<Layer> MakeConcat(const std::vector<std::vector<int64_t>>& shapes);
// The inputs are x and x_0, of `elements` values each.
std::unique_ptr<Layer> MakeCross(const std::string& name, int64_t elements, Initializer init);
// `inputs` embeddings of `dim` values each, the linear weight first.
std::unique_ptr<Layer> MakeFactorizationMachine(const std::string& name, int64_t inputs, int64_t dim);

// "[16, 4, 4]"
std::string ShapeString(const std::vector<int64_t>& shape);
int64_t ShapeElements(const std::vector<int64_t>& shape);

// "dense", as in a config.
std::string LayerWord(v1::LayerConfig::Type type);
// The layer's name in the config, or else its type and position.
std::string LayerName(const v1::LayerConfig& config, int position);

// The layer of a config at `position` of model.layers, for inputs of these shapes. A cross layer's are x and
// x_0. InvalidArgument with the field's path.
absl::StatusOr<std::unique_ptr<Layer>> MakeLayer(const v1::LayerConfig& config, int position,
                                                 const std::vector<std::vector<int64_t>>& input_shapes,
                                                 const ModelInputs& inputs);

}  // namespace weir
