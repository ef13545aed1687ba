#pragma once

#include <cstdint>
#include <functional>
#include <memory>
#include <optional>
#include <vector>

#include "absl/status/statusor.h"
#include "absl/types/span.h"
#include "common/model/model_spec.h"
#include "proto/job_config.pb.h"
#include "worker/compute/compute_backend.h"
#include "worker/data/dataset.h"
#include "worker/model/layer.h"
#include "worker/model/repeated_calls.h"

namespace weir {

struct Evaluation {
  double loss = 0;                 // mean over the examples
  std::optional<double> accuracy;  // the share of right classes; none for mean_squared_error
  int64_t examples = 0;
};

// What a model does on a device with memory of its own; of no meaning elsewhere.
struct DeviceOptions {
  // Gradients are rounded to bfloat16 before they are copied to the host, which takes half the bytes then.
  bool rounds_gradients = false;
  // Parts of a training pass are replayed where that takes less than their calls (ComputeBackend::replays).
  bool replays = true;
  // There is memory for a second set of weights (Model::Traffic::next_weights).
  bool weights_ahead = false;
};

// A model from the config: a list of layers and a loss. It computes losses and gradients; who provides its
// weights and what becomes of its gradients is not its concern.
//
// weights() and gradients() are host memory: all tensors of spec() end to end, in its order. On a device with
// memory of its own ForwardBackward and Evaluate copy the weights there, layer by layer as forward gets to
// them, and ForwardBackward copies the gradients back in the same way. Both are unspecified until they are
// written.
//
// Not thread-safe. All memory is taken by Create, but for what a device keeps of captured calls.
class Model {
 public:
  // config has passed the job config's checks. input_shape: of one example. outputs: what the last layer must
  // give (Dataset::outputs). max_batch: examples of the largest batch. The backend must outlive the model.
  // InvalidArgument: the layer, the shapes that do not fit and what to do; ResourceExhausted: too large for
  // the device.
  static absl::StatusOr<std::unique_ptr<Model>> Create(const v1::ModelConfig& config,
                                                       const std::vector<int64_t>& input_shape,
                                                       int64_t outputs, int64_t max_batch,
                                                       ComputeBackend* backend,
                                                       const DeviceOptions& options = DeviceOptions());

  // Whether such a model can be made, and its tensors; takes no memory. outputs: nullopt, if it is not known.
  static absl::StatusOr<ModelSpec> Check(const v1::ModelConfig& config,
                                         const std::vector<int64_t>& input_shape,
                                         std::optional<int64_t> outputs);

  const ModelSpec& spec() const { return spec_; }
  int64_t max_batch() const { return max_batch_; }

  absl::Span<float> weights() { return {host_weights_, elements_}; }
  absl::Span<float> gradients() { return {host_gradients_, elements_}; }
  // Gradients reach the host as bfloat16: its bits, in the first half of the memory of gradients().
  bool rounds_gradients() const { return rounds_gradients_; }
  absl::Span<const uint16_t> rounded_gradients() const {
    return {reinterpret_cast<const uint16_t*>(host_gradients_), elements_};
  }
  // From now on they lie there instead of in memory of the model's own: spec().elements() floats each, which
  // devices copy best where they are ComputeBackend::Memory::kHost. Other models may read the same weights.
  void Bind(float* weights, float* gradients);
  // The next gradient begins. What gradients() holds is unspecified until it is there.
  void ZeroGradients();

  // How weights and gradients come and go while a pass computes. By default all weights are there, have
  // changed, and the pass makes the gradient complete.
  struct Traffic {
    // weights() are other ones than in the pass before.
    bool new_weights = true;
    // If set, called for each layer with new weights, in forward's order, before those of the tensors [first,
    // end) are read: returns once they are there. An error ends the pass with it.
    std::function<absl::Status(size_t first, size_t end)> await_weights;
    // No other pass will add to the gradient. Else it may stay on the device, and what is below is not
    // called.
    bool last = true;
    // If set, called between forward, which has asked for all weights, and backward. An error ends the pass.
    std::function<absl::Status()> forward_done;
    // If set, called when all of the pass is queued on a device that computes meanwhile: for Prepare().
    std::function<void()> queued;
    // If set, asked again and again while the device computes the last backward, until it gives the weights()
    // of the next pass with new ones, which may not be there yet: they are copied to the device meanwhile
    // (DeviceOptions::weights_ahead), and kept until a pass has begun with these or other new weights.
    std::function<std::shared_ptr<const float>()> next_weights;
    // If set, called with the index (in spec()) of each tensor whose gradient is complete in gradients(),
    // from the last to the first, as the backward pass goes on.
    std::function<void(size_t tensor)> gradient_ready;
  };

  // Adds the gradient of (sum of the examples' losses) / divisor to gradients(); with the size of the whole
  // batch as divisor, its micro-batches add up to the gradient of the batch's mean loss. Returns the sum of
  // the losses. The error is the device's, or one of the traffic's; weights() and gradients() are not in use
  // any more, but the gradient is of no use. batch.n <= max_batch().
  absl::StatusOr<double> ForwardBackward(const Batch& batch, int64_t divisor, const RandomContext& random,
                                         const Traffic& traffic);
  absl::StatusOr<double> ForwardBackward(const Batch& batch, int64_t divisor, const RandomContext& random) {
    return ForwardBackward(batch, divisor, random, Traffic());
  }

  // Begins to copy the batch of the next pass to the device, from within Traffic::queued of this one. It
  // stays as it is until that next pass; if that is of another batch this was in vain.
  void Prepare(const Batch& batch);

  // The mean loss and the accuracy over a whole dataset, without dropout.
  absl::StatusOr<Evaluation> Evaluate(const Dataset& dataset);

 private:
  // A layer and where its tensors begin in the address space and in spec().
  struct Stage {
    std::unique_ptr<Layer> layer;
    int64_t offset = 0;
    int64_t elements = 0;
    size_t first_tensor = 0;
    size_t tensors = 0;
    int64_t output_elements = 0;  // of one example
    Buffer<float> output;         // [max_batch, output shape...]; none for a view
    uint64_t copied_ahead = 0;    // a mark behind its weights in weights_ahead_
    const float* x = nullptr;     // of the pass at hand
    const float* y = nullptr;
    // Of this stage and those behind it that have no tensors: of all that may be queued before the next
    // weights are awaited, or the next gradients leave.
    RepeatedCalls forward, backward;
  };

  // backend: nullptr for one that computes nothing.
  Model(v1::ModelConfig::Loss loss, int64_t max_batch, ComputeBackend* backend, const DeviceOptions& options)
      : loss_(loss),
        max_batch_(max_batch),
        backend_(backend),
        rounds_gradients_(backend != nullptr && options.rounds_gradients && !backend->unified()),
        keeps_weights_ahead_(backend != nullptr && options.weights_ahead && !backend->unified()),
        replays_(backend != nullptr && options.replays && backend->replays()) {}
  absl::Status BuildStages(const v1::ModelConfig& config, const std::vector<int64_t>& input_shape,
                           std::optional<int64_t> wanted);
  absl::Status TakeMemory();

  template <typename T>
  T* OnHost(const Buffer<T>& device, const Buffer<T>& staged) const;
  // A batch on the device, whose memory is not the host's.
  struct DeviceBatch {
    Buffer<float> features, targets;
    Buffer<int32_t> labels;
    // Page-locked copies, from which copies to the device leave while this thread goes on.
    Buffer<float> staged_features, staged_targets;
    Buffer<int32_t> staged_labels;
  };
  // Queues the copy of the batch behind the mark.
  void CopyToDevice(const Batch& batch, const DeviceBatch& to, uint64_t after);

  // Where layers find their weights, and add to their gradients.
  const float* device_weights() const { return backend_->unified() ? host_weights_ : weights_.get(); }
  float* device_gradients() const { return backend_->unified() ? host_gradients_ : gradients_.get(); }
  // The stage's weights are there for all that is queued from now on. ahead: they were copied so.
  absl::Status BringWeights(const Stage& stage, const Traffic& traffic, bool ahead);
  // Makes the calls of the stages [first, end), or replays them.
  template <typename Calls>
  void Run(size_t first, size_t end, const Pass& pass, RepeatedCalls* repeated, const RepeatedCalls::Key& key,
           const Calls& calls);
  // Runs the layers and queues the losses, in training their gradients too.
  absl::Status Forward(const Batch& batch, const Pass& pass, float gradient_scale, const Traffic& traffic);
  // Copies the weights of the next pass to the device, if they are there. False: they are not.
  bool CopyWeightsAhead(const Traffic& traffic);
  // Waits for the mark, and meanwhile for the next weights.
  absl::Status Wait(uint64_t mark, const Traffic& traffic);
  // Queues the copy of the stage's gradients, rounded if they are to be, to the host.
  void CopyGradientsToHost(const Stage& stage);
  // Queues the gradients' way from the last layer down to the first that has parameters; then tells of each
  // that is there.
  absl::Status Backward(const Pass& pass, const Traffic& traffic);
  // Of the pass that is queued; waits for it.
  absl::StatusOr<double> SumLosses(int64_t n);

  const v1::ModelConfig::Loss loss_;
  const int64_t max_batch_;
  ComputeBackend* const backend_;
  const bool rounds_gradients_, keeps_weights_ahead_;
  bool replays_;  // until a capture fails
  ModelSpec spec_;
  size_t elements_ = 0;
  float *host_weights_ = nullptr, *host_gradients_ = nullptr;
  std::vector<Stage> stages_;
  size_t first_trained_ = 0;  // the first stage with parameters; nothing before it needs gradients
  int64_t input_elements_ = 0, outputs_ = 0;

  // From `rounded_gradients_` on they are made only where the device's memory is not the host's. The weights
  // and gradients of the host are these until Bind().
  Buffer<float> weights_, gradients_, losses_;
  Buffer<int32_t> predictions_;
  Buffer<uint16_t> rounded_gradients_;  // if rounds_gradients_
  Buffer<float> weights_ahead_;         // if keeps_weights_ahead_
  std::shared_ptr<const float> ahead_;  // what is in it or on its way there; null: nothing
  Buffer<float> staged_weights_, staged_gradients_, staged_losses_;
  Buffer<int32_t> staged_predictions_;
  DeviceBatch batches_[2];  // of the pass at hand and of the next one, in turns
  size_t turn_ = 0;
  const Batch* next_batch_ = nullptr;          // what is in the other one, if anything is
  uint64_t pass_began_ = 0, pass_queued_ = 0;  // marks
  Buffer<float> upstream_[2];                  // gradients between layers, in turns
};

}  // namespace weir
