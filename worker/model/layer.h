#pragma once

#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "common/model/model_spec.h"
#include "proto/job_config.pb.h"
#include "worker/compute/compute_backend.h"

namespace weir {

// What all random choices of a forward pass depend on, besides the layer's name.
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
};

// One layer of a model: its shapes, its tensors, forward and backward. A layer knows nothing about where its
// parameters come from: `weights` and `gradients` are its tensors end to end in device memory. x, y [n,
// shape...] and their gradients dx, dy are the model's. Backward follows the Forward of the same pass. Not
// thread-safe.
class Layer {
 public:
  virtual ~Layer() = default;

  // The shape of one example.
  virtual const std::vector<int64_t>& output_shape() const = 0;
  virtual std::vector<TensorSpec> Tensors() const { return {}; }
  // Returns whether y is x with another shape; then Forward and Backward are not called.
  virtual bool is_view() const { return false; }
  // Returns whether passes over the same memory differ in more than the values there: in random draws.
  virtual bool is_random() const { return false; }
  // The floats of scratch memory that a backend takes for the layer's passes by itself, whatever the batch.
  virtual int64_t scratch_elements() const { return 0; }
  // Takes the scratch memory that a pass of up to max_batch examples needs.
  virtual absl::Status Reserve(ComputeBackend* backend, int64_t max_batch) { return absl::OkStatus(); }

  virtual void Forward(ComputeBackend* backend, const Pass& pass, const float* weights, const float* x,
                       float* y) = 0;
  // Adds to `gradients`; overwrites dx, which may be null if it is not needed.
  virtual void Backward(ComputeBackend* backend, const Pass& pass, const float* weights, const float* x,
                        const float* y, const float* dy, float* dx, float* gradients) = 0;
};

// "[16, 4, 4]"
std::string ShapeString(const std::vector<int64_t>& shape);
int64_t ShapeElements(const std::vector<int64_t>& shape);

// The layer of a config at `position` of model.layers, for inputs of input_shape. InvalidArgument with the
// field's path.
absl::StatusOr<std::unique_ptr<Layer>> MakeLayer(const v1::LayerConfig& config, int position,
                                                 const std::vector<int64_t>& input_shape);

}  // namespace weir
