// How long a training step takes on one device without any server: the MLP inputs-width-width-10 with softmax
// cross-entropy and plain SGD on one batch of random numbers. Prints a line of JSON for each way and
// precision:
//   eager   forward, backward and update, all on the device, queued call by call
//   graph   the same, captured once and replayed
//   copies  what a worker does: weights to the device, forward, backward, gradients back to the host
//   calls   the same with each of the model's operations queued on its own, where a worker replays them
// torch_step.py prints the same lines for PyTorch.
#include <CLI/CLI.hpp>
#include <algorithm>
#include <chrono>
#include <cmath>
#include <cstdio>
#include <functional>
#include <memory>
#include <string>
#include <vector>

#include "absl/strings/str_cat.h"
#include "common/base/random.h"
#include "common/base/status_macros.h"
#include "common/program/exit_codes.h"
#include "tests/worker/bench/mlp_flags.h"
#include "worker/compute/compute_backend.h"
#include "worker/model/layer.h"
#include "worker/model/model.h"

namespace weir {
namespace {

constexpr int64_t kClasses = 10;
constexpr float kLearningRate = 1e-3f;

struct Flags : MlpFlags {
  std::string precisions = "float32,tf32,bf16";
};

v1::ModelConfig Mlp(int64_t width) {
  v1::ModelConfig config;
  const auto add = [&](v1::LayerConfig::Type type) {
    v1::LayerConfig* layer = config.add_layers();
    layer->set_type(type);
    layer->set_name(absl::StrCat("layer_", config.layers_size()));
    layer->set_init(v1::LayerConfig::INIT_HE_NORMAL);
    return layer;
  };
  for (int i = 0; i < 2; ++i) {
    add(v1::LayerConfig::LAYER_DENSE)->set_units(static_cast<uint32_t>(width));
    add(v1::LayerConfig::LAYER_RELU);
  }
  add(v1::LayerConfig::LAYER_DENSE)->set_units(kClasses);
  return config;
}

std::vector<float> RandomValues(int64_t n, float scale) {
  RandomStream random(RandomKey(1, "step_bench"), static_cast<uint64_t>(n));
  std::vector<float> values(static_cast<size_t>(n));
  for (float& value : values) value = scale * (static_cast<float>(random.NextBelow(20001)) / 10000 - 1);
  return values;
}

Batch RandomBatch(const Flags& flags) {
  Batch batch;
  batch.n = flags.batch;
  batch.features = RandomValues(flags.batch * flags.inputs, 1);
  for (int64_t i = 0; i < flags.batch; ++i) batch.labels.push_back(static_cast<int32_t>(i % kClasses));
  return batch;
}

// Weights, gradients and activations of the MLP in a device's memory; nothing leaves it.
class DeviceStep {
 public:
  static absl::StatusOr<std::unique_ptr<DeviceStep>> Create(const Flags& flags, ComputeBackend* backend) {
    std::unique_ptr<DeviceStep> step(new DeviceStep(flags.batch, backend));
    WEIR_RETURN_IF_ERROR(step->Prepare(flags));
    return step;
  }

  // Queues one step.
  void Run() {
    Pass pass;
    pass.n = batch_;
    pass.training = true;
    backend_->Fill(parameters_, 0, gradients_.get());
    const float* x = features_.get();
    for (const Stage& stage : stages_) {
      stage.layer->Forward(backend_, pass, weights_.get() + stage.offset, {&x, 1}, stage.y.get());
      x = stage.y.get();
    }
    backend_->SoftmaxCrossEntropy(batch_, kClasses, x, labels_.get(), 1.0f / static_cast<float>(batch_),
                                  losses_.get(), slopes_[0].get());
    for (size_t i = stages_.size(), turn = 0; i-- > 0; turn = 1 - turn) {
      const Stage& stage = stages_[i];
      const float* const input = i == 0 ? features_.get() : stages_[i - 1].y.get();
      float* const slope = i == 0 ? nullptr : slopes_[1 - turn].get();
      stage.layer->Backward(backend_, pass, weights_.get() + stage.offset, {&input, 1}, stage.y.get(),
                            slopes_[turn].get(), {&slope, 1}, gradients_.get() + stage.offset);
    }
    backend_->Axpy(parameters_, -kLearningRate, gradients_.get(), weights_.get());
  }

 private:
  static constexpr auto kDevice = ComputeBackend::Memory::kDevice;
  struct Stage {
    std::unique_ptr<Layer> layer;
    int64_t offset = 0;
    Buffer<float> y;
  };

  DeviceStep(int64_t batch, ComputeBackend* backend) : batch_(batch), backend_(backend) {}

  absl::Status Prepare(const Flags& flags) {
    std::vector<int64_t> shape = {flags.inputs};
    const v1::ModelConfig config = Mlp(flags.width);
    for (int i = 0; i < config.layers_size(); ++i) {
      Stage stage;
      WEIR_ASSIGN_OR_RETURN(stage.layer,
                            MakeLayer(config.layers(i), i, {shape}, ModelInputs({flags.inputs})));
      shape = stage.layer->output_shape();
      stage.offset = parameters_;
      for (const TensorSpec& tensor : stage.layer->Tensors()) parameters_ += tensor.elements();
      WEIR_RETURN_IF_ERROR(stage.layer->Reserve(backend_, batch_));
      WEIR_ASSIGN_OR_RETURN(stage.y, Buffer<float>::Make(backend_, kDevice, batch_ * shape[0]));
      stages_.push_back(std::move(stage));
    }
    const int64_t widest = std::max(flags.width, kClasses);
    for (Buffer<float>& slope : slopes_) {
      WEIR_ASSIGN_OR_RETURN(slope, Buffer<float>::Make(backend_, kDevice, batch_ * widest));
    }
    WEIR_ASSIGN_OR_RETURN(weights_, Buffer<float>::Make(backend_, kDevice, parameters_));
    WEIR_ASSIGN_OR_RETURN(gradients_, Buffer<float>::Make(backend_, kDevice, parameters_));
    WEIR_ASSIGN_OR_RETURN(losses_, Buffer<float>::Make(backend_, kDevice, batch_));
    WEIR_ASSIGN_OR_RETURN(features_, Buffer<float>::Make(backend_, kDevice, batch_ * flags.inputs));
    WEIR_ASSIGN_OR_RETURN(labels_, Buffer<int32_t>::Make(backend_, kDevice, batch_));
    const Batch batch = RandomBatch(flags);
    const std::vector<float> weights = RandomValues(parameters_, 1 / std::sqrt(static_cast<float>(widest)));
    backend_->CopyToDevice(weights_.get(), weights.data(), weights.size() * sizeof(float));
    backend_->CopyToDevice(features_.get(), batch.features.data(), batch.features.size() * sizeof(float));
    backend_->CopyToDevice(labels_.get(), batch.labels.data(), batch.labels.size() * sizeof(int32_t));
    return backend_->Wait(backend_->Record());
  }

  const int64_t batch_;
  ComputeBackend* const backend_;
  std::vector<Stage> stages_;
  int64_t parameters_ = 0;
  Buffer<float> weights_, gradients_, losses_, features_;
  Buffer<int32_t> labels_;
  Buffer<float> slopes_[2];  // gradients between layers, in turns
};

// The median over rounds. Each round has enough steps for queueing to hide behind the device's work.
absl::StatusOr<double> MedianSeconds(const Flags& flags, ComputeBackend* backend,
                                     const std::function<absl::Status()>& step) {
  constexpr int kStepsARound = 10;
  using Seconds = std::chrono::duration<double>;
  for (int i = 0; i < 3; ++i) WEIR_RETURN_IF_ERROR(step());
  WEIR_RETURN_IF_ERROR(backend->Wait(backend->Record()));
  std::vector<double> rounds;
  const auto begin = std::chrono::steady_clock::now();
  while (rounds.size() < 3 || Seconds(std::chrono::steady_clock::now() - begin).count() < flags.seconds) {
    const auto start = std::chrono::steady_clock::now();
    for (int i = 0; i < kStepsARound; ++i) WEIR_RETURN_IF_ERROR(step());
    WEIR_RETURN_IF_ERROR(backend->Wait(backend->Record()));
    rounds.push_back(Seconds(std::chrono::steady_clock::now() - start).count() / kStepsARound);
  }
  const auto middle = rounds.begin() + static_cast<std::ptrdiff_t>(rounds.size() / 2);
  std::nth_element(rounds.begin(), middle, rounds.end());
  return *middle;
}

absl::StatusOr<Precision> ParsePrecision(const std::string& name) {
  for (const Precision p : {Precision::kFloat32, Precision::kTf32, Precision::kBfloat16}) {
    if (PrecisionName(p) == name) return p;
  }
  return absl::InvalidArgumentError(
      absl::StrCat("--precisions: '", name, "' is not known; there are float32, tf32 and bf16"));
}

absl::Status RunOne(const Flags& flags, const std::string& precision) {
  ComputeOptions options;
  options.device = flags.device;
  WEIR_ASSIGN_OR_RETURN(options.precision, ParsePrecision(precision));
  WEIR_ASSIGN_OR_RETURN(const auto backend, MakeComputeBackend(options));
  const auto measure = [&](const char* way, const std::function<absl::Status()>& step) -> absl::Status {
    WEIR_ASSIGN_OR_RETURN(const double seconds, MedianSeconds(flags, backend.get(), step));
    std::printf(R"({"program": "weir", "way": "%s", "precision": "%s", "device": "%s", "ms": %.4f})"
                "\n",
                way, precision.c_str(), flags.device.c_str(), 1000 * seconds);
    std::fflush(stdout);
    return absl::OkStatus();
  };
  {
    WEIR_ASSIGN_OR_RETURN(const auto step, DeviceStep::Create(flags, backend.get()));
    const auto eager = [&] {
      step->Run();
      return absl::OkStatus();
    };
    WEIR_RETURN_IF_ERROR(measure("eager", eager));
    WEIR_ASSIGN_OR_RETURN(const auto captured, backend->Capture([&] { step->Run(); }));
    const auto replay = [&] {
      backend->Replay(captured.get());
      return absl::OkStatus();
    };
    WEIR_RETURN_IF_ERROR(measure("graph", replay));
  }
  const Batch batch = RandomBatch(flags);
  const auto copies = [&](const char* way, bool replays) -> absl::Status {
    DeviceOptions device;
    device.replays = replays;
    WEIR_ASSIGN_OR_RETURN(const auto model, Model::Create(Mlp(flags.width), {flags.inputs}, kClasses,
                                                          flags.batch, backend.get(), device));
    const std::vector<float> weights =
        RandomValues(model->spec().elements(), 1 / std::sqrt(static_cast<float>(flags.width)));
    std::copy(weights.begin(), weights.end(), model->weights().begin());
    return measure(way, [&]() -> absl::Status {
      model->ZeroGradients();
      return model->ForwardBackward(batch, flags.batch, {}).status();
    });
  };
  WEIR_RETURN_IF_ERROR(copies("copies", true));
  return backend->replays() ? copies("calls", false) : absl::OkStatus();
}

int Main(const Flags& flags) {
  for (const std::string& precision : CLI::detail::split(flags.precisions, ',')) {
    if (const absl::Status status = RunOne(flags, precision); !status.ok()) return ReportEnd(status);
  }
  return kExitOk;
}

}  // namespace
}  // namespace weir

int main(int argc, char** argv) {
  weir::Flags flags;
  CLI::App app("Measures a training step of an MLP on one device, without servers.");
  flags.AddTo(&app);
  app.add_option("--precisions", flags.precisions, "Some of float32,tf32,bf16")->capture_default_str();
  try {
    app.parse(argc, argv);
  } catch (const CLI::ParseError& error) {
    return app.exit(error) == 0 ? weir::kExitOk : weir::kExitUsage;
  }
  return weir::Main(flags);
}
