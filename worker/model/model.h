#pragma once

#include <cstdint>
#include <functional>
#include <map>
#include <memory>
#include <optional>
#include <tuple>
#include <vector>

#include "absl/functional/function_ref.h"
#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/types/span.h"
#include "common/model/model_spec.h"
#include "proto/job_config.pb.h"
#include "worker/compute/compute_backend.h"
#include "worker/data/dataset.h"
#include "worker/model/layer.h"
#include "worker/model/traffic.h"

namespace weir {

// A part of a pass: the same calls again and again, on the same memory if the Key is the same. Calls that are
// made a second time are captured (ComputeBackend::Capture), and replayed from then on. Destroyed before the
// backend. Not thread-safe.
class RepeatedCalls {
 public:
  // Everything that the calls depend on and that is not always the same: sizes, factors, a choice, addresses.
  using Key = std::tuple<int64_t, float, bool, const void*, const void*, const void*>;

  // Makes the calls, directly or by replay. They may be kept, and made again with the same key. Returns the
  // error of a capture; the calls were made nevertheless, but this object should not be used any more.
  absl::Status Run(ComputeBackend* backend, const Key& key, const std::function<void()>& calls);

 private:
  // The number of keys that are kept: each costs memory on the device. Other keys are of rare sizes.
  static constexpr size_t kMost = 16;

  // Null: the calls were made once, so that their scratch memory is there.
  std::map<Key, std::unique_ptr<ComputeBackend::Captured>> captured_;
};

struct Evaluation {
  double loss = 0;                 // mean over the examples
  std::optional<double> accuracy;  // the share of right classes; none for mean_squared_error
  std::optional<double> auc;       // with sigmoid_cross_entropy, and labels of both kinds
  int64_t examples = 0;
};

// The tensors of a model, and the memory, in floats, that computing with it on the host takes.
struct ModelNeeds {
  ModelSpec spec;
  // At most, for each example of the largest batch: outputs of layers, and gradients between them. Without
  // the rows of tables.
  int64_t floats_per_example = 0;
  int64_t scratch_floats = 0;
};

// Options for a device with memory of its own; without meaning elsewhere.
struct DeviceOptions {
  // Gradients are rounded to bfloat16 before they are copied to the host, which halves the bytes.
  bool rounds_gradients = false;
  // Parts of a training pass are replayed if that takes less time than their calls (ComputeBackend::replays).
  bool replays = true;
  // The device has memory for a second set of weights (Traffic::next_weights).
  bool weights_ahead = false;
};

// A model from the config: layers and a loss. The model computes losses and gradients; its caller brings the
// weights and uses the gradients.
//
// Layers are computed in the order of the config. By default each takes the output of the one before it;
// `inputs` in the config make any graph of them. The gradient of an output that several layers take is the
// sum of what they give, from the last of them to the first.
//
// weights() and gradients() are host memory: all tensors of spec() end to end, in its order. On a device with
// memory of its own, ForwardBackward and Evaluate copy the weights there, layer by layer as forward reaches
// them, and ForwardBackward copies the gradients back in the same way. Both are unspecified until they are
// written.
//
// Not thread-safe. Create takes all memory, except what a device keeps of captured calls.
class Model {
 public:
  // `config` has passed the job config's checks. outputs: the size of the last layer (Dataset::outputs).
  // max_batch: examples of the largest batch. The backend must outlive the model. InvalidArgument: names the
  // layer, what does not fit and what to do. ResourceExhausted: too large for the device.
  static absl::StatusOr<std::unique_ptr<Model>> Create(const v1::ModelConfig& config,
                                                       const ModelInputs& inputs, int64_t outputs,
                                                       int64_t max_batch, ComputeBackend* backend,
                                                       const DeviceOptions& options = DeviceOptions());

  // Checks that such a model can be made, and returns what it needs; takes no memory. outputs: nullopt if it
  // is unknown.
  static absl::StatusOr<ModelNeeds> Check(const v1::ModelConfig& config, const ModelInputs& inputs,
                                          std::optional<int64_t> outputs);
  // Returns whether the config has a layer that only the CPU computes.
  static bool NeedsCpu(const v1::ModelConfig& config);

  const ModelSpec& spec() const { return spec_; }
  int64_t max_batch() const { return max_batch_; }

  absl::Span<float> weights() { return {host_weights_, elements_}; }
  absl::Span<float> gradients() { return {host_gradients_, elements_}; }
  // Gradients reach the host as the bits of bfloat16, in the first half of the memory of gradients().
  bool rounds_gradients() const { return rounds_gradients_; }
  absl::Span<const uint16_t> rounded_gradients() const {
    return {reinterpret_cast<const uint16_t*>(host_gradients_), elements_};
  }
  // From now on weights and gradients lie there instead of in the model's own memory: spec().elements()
  // floats each. Devices copy best if the memory is ComputeBackend::Memory::kHost. Other models may read the
  // same weights.
  void Bind(float* weights, float* gradients);
  // Where embeddings have their rows from.
  const std::vector<EmbeddingSource>& embeddings() const { return embeddings_; }
  // From now on embeddings read these rows, which are those of the next batches (RowsFor), and their
  // gradients are added to `gradients`; null: there will be no training passes. Other models may read the
  // same rows.
  void BindRows(const std::vector<TableRows>* rows, RowGradientValues* gradients) {
    rows_ = rows;
    row_gradients_ = gradients;
  }
  // Begins the next gradient. gradients() is unspecified until that gradient is complete.
  void ZeroGradients();

  // Adds the gradient of (sum of the examples' losses) / divisor to gradients(). With the size of the whole
  // batch as divisor, the gradients of its micro-batches add up to the gradient of the batch's mean loss.
  // Returns the sum of the losses. An error is the device's, or one of the traffic's; then weights() and
  // gradients() are not in use any more, but the gradient is useless. batch.n <= max_batch().
  absl::StatusOr<double> ForwardBackward(const Batch& batch, int64_t divisor, const RandomContext& random,
                                         const Traffic& traffic = Traffic());

  // Begins to copy the batch of the next pass to the device; called from within Traffic::queued of this pass.
  // The batch stays as it is until the next pass. If that pass has another batch, the copy was in vain.
  void Prepare(const Batch& batch);

  // The mean loss, the accuracy and the AUC over a whole dataset, without dropout. goes_on: called before
  // each batch; an error ends the evaluation with that error.
  absl::StatusOr<Evaluation> Evaluate(const Dataset& dataset,
                                      absl::FunctionRef<absl::Status()> goes_on = absl::OkStatus);

 private:
  // In place of a stage's position: the numbers of the batch.
  static constexpr int kFeatures = -1;
  // Where a stage's dx goes, if the input needs a gradient: into this buffer, and if `adds` from there to the
  // gradient of the input, which another stage has begun.
  struct InputGradient {
    int buffer = -1;  // none
    bool adds = false;
  };
  // A layer and where its tensors begin in the address space and in spec().
  struct Stage {
    std::unique_ptr<Layer> layer;
    // The stages whose memory it reads: for the output of a view, the stage below it.
    std::vector<int> inputs;
    // Its output depends on tensors or rows, so it needs the gradient of the output, in this buffer.
    bool trained = false;
    int gradient = -1;
    std::vector<InputGradient> input_gradients;
    int64_t offset = 0;
    int64_t elements = 0;
    size_t first_tensor = 0;
    size_t tensors = 0;
    int64_t output_elements = 0;  // of one example
    Buffer<float> output;         // [max_batch, output shape...]; none for a view
    uint64_t copied_ahead = 0;    // a mark behind the copy of its weights to weights_ahead_
    std::vector<const float*> x;  // of the current pass
    const float* y = nullptr;
    // The repeated calls of this stage and of the stages behind it that have no tensors: all that may be
    // queued before the next weights are awaited, or the next gradients leave.
    RepeatedCalls forward, backward;
  };

  // backend: nullptr for a model that computes nothing.
  Model(v1::ModelConfig::Loss loss, int64_t max_batch, ComputeBackend* backend, const DeviceOptions& options)
      : loss_(loss),
        max_batch_(max_batch),
        backend_(backend),
        rounds_gradients_(backend != nullptr && options.rounds_gradients && !backend->unified()),
        keeps_weights_ahead_(backend != nullptr && options.weights_ahead && !backend->unified()),
        replays_(backend != nullptr && options.replays && backend->replays()) {}
  absl::Status BuildStages(const v1::ModelConfig& config, const ModelInputs& inputs,
                           std::optional<int64_t> wanted);
  // Chooses buffers for the gradients of outputs: one serves several that are not needed at the same time.
  void PlanGradients();
  absl::Status TakeMemory();

  // Memory of the device, with as much memory of the host that the device copies to and from while this
  // thread continues. If the device's memory is the host's, the two are one.
  template <typename T>
  struct Mirrored {
    absl::Status Take(ComputeBackend* backend, int64_t n);
    T* get() const { return device.get(); }
    T* host() const { return staged.get() == nullptr ? device.get() : staged.get(); }
    Buffer<T> device, staged;
  };
  // A batch on a device whose memory is not the host's.
  struct DeviceBatch {
    Mirrored<float> features, targets;
    Mirrored<int32_t> labels;
  };
  // Queues the copy of the batch behind the mark `after`.
  void CopyToDevice(const Batch& batch, const DeviceBatch& to, uint64_t after);

  // Where layers find their weights, and add to their gradients.
  const float* device_weights() const { return backend_->unified() ? host_weights_ : weights_.get(); }
  float* device_gradients() const { return backend_->unified() ? host_gradients_ : gradients_.get(); }
  // The stage's weights are there for everything that is queued from now on. ahead: they were copied ahead.
  absl::Status BringWeights(const Stage& stage, const Traffic& traffic, bool ahead);
  // Makes the calls of the stages [first, end), or replays them.
  template <typename Calls>
  void Run(size_t first, size_t end, const Pass& pass, RepeatedCalls* repeated, const RepeatedCalls::Key& key,
           const Calls& calls);
  // Runs the layers and queues the losses and, in training, their gradients.
  absl::Status Forward(const Batch& batch, const Pass& pass, float gradient_scale, const Traffic& traffic);
  // Copies the weights of the next pass to the device, if they are there. False: they are not there.
  bool CopyWeightsAhead(const Traffic& traffic);
  // Waits for the mark, and meanwhile looks for the next weights.
  absl::Status Wait(uint64_t mark, const Traffic& traffic);
  // Queues the copy of the stage's gradients to the host, rounded if rounds_gradients_.
  void CopyGradientsToHost(const Stage& stage);
  // Queues the gradients from the last layer down to the first that has parameters, then reports each
  // gradient that is there.
  absl::Status Backward(const Pass& pass, const Traffic& traffic);
  // The sum of the losses of the queued pass, for which this waits.
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
  size_t first_trained_ = 0;
  int64_t input_elements_ = 0, outputs_ = 0;
  std::vector<EmbeddingSource> embeddings_;
  const std::vector<TableRows>* rows_ = nullptr;
  RowGradientValues* row_gradients_ = nullptr;

  // Until Bind() the host's weights and gradients are these.
  Mirrored<float> weights_, gradients_, losses_;
  Mirrored<int32_t> predictions_;
  // These buffers and the batches are made only if the device's memory is not the host's.
  Buffer<uint16_t> rounded_gradients_;  // if rounds_gradients_
  Buffer<float> weights_ahead_;         // if keeps_weights_ahead_
  std::shared_ptr<const float> ahead_;  // what is in weights_ahead_ or on its way there; null: nothing
  Buffer<float> staged_logits_;
  DeviceBatch batches_[2];  // of the current pass and the next, in turns
  size_t turn_ = 0;
  const Batch* next_batch_ = nullptr;          // what is in the other batch, if anything is
  uint64_t pass_began_ = 0, pass_queued_ = 0;  // marks
  // Gradients between layers, and the floats of each for an example.
  std::vector<Buffer<float>> between_;
  std::vector<int64_t> between_elements_;
};

// Sets each value of all pieces to the nearest one in [-limit, limit]. A NaN stays, so that the check of
// gradients finds it; an infinity becomes the limit. limit 0 is off.
void ClipValues(float limit, absl::Span<const absl::Span<float>> pieces);

// Scales the values of all pieces down to the L2 norm max_norm if the norm of all together is larger. A norm
// that is not finite leaves them as they are, so that the check of gradients finds it. max_norm 0 is off.
// Returns the norm before scaling, summed in float64 in a fixed order, so that it is the same wherever it is
// computed.
double ClipToNorm(double max_norm, absl::Span<const absl::Span<float>> pieces);

}  // namespace weir
