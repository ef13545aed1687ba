#include "worker/model/layer.h"

#include <algorithm>
#include <cstdlib>

#include "absl/strings/ascii.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "common/base/random.h"
#include "common/base/status_macros.h"
#include "worker/data/csv.h"

namespace weir {
namespace {

using Shape = std::vector<int64_t>;
using v1::LayerConfig;

constexpr int64_t kMostElements = int64_t{1} << 30;  // of one example between two layers

class Dense final : public Layer {
 public:
  Dense(std::string name, int64_t inputs, int64_t units, Initializer init)
      : Layer({units}), name_(std::move(name)), inputs_(inputs), init_(init) {}

  std::vector<TensorSpec> Tensors() const override {
    return {{name_ + "/weight", {inputs_, shape_[0]}, TensorKind::kParameter, init_},
            {name_ + "/bias", {shape_[0]}, TensorKind::kParameter, Initializer::Zeros()}};
  }
  void Forward(ComputeBackend* backend, const Pass& pass, const float* weights, Inputs x, float* y) override {
    backend->Gemm(false, false, pass.n, shape_[0], inputs_, 1, x[0], weights, 0, y);
    backend->AddBias(pass.n, shape_[0], weights + inputs_ * shape_[0], y);
  }
  void Backward(ComputeBackend* backend, const Pass& pass, const float* weights, Inputs x, const float*,
                const float* dy, Gradients dx, float* gradients) override {
    backend->Gemm(true, false, inputs_, shape_[0], pass.n, 1, x[0], dy, 1, gradients);
    backend->BiasGradient(pass.n, shape_[0], dy, gradients + inputs_ * shape_[0]);
    if (dx[0] != nullptr) backend->Gemm(false, true, pass.n, inputs_, shape_[0], 1, dy, weights, 0, dx[0]);
  }

 private:
  const std::string name_;
  const int64_t inputs_;
  const Initializer init_;
};

class Conv2d final : public Layer {
 public:
  Conv2d(std::string name, const Window& window, int64_t filters, Initializer init)
      : Layer({filters, window.out_height(), window.out_width()}),
        name_(std::move(name)),
        window_(window),
        filters_(filters),
        init_(init) {}

  std::vector<TensorSpec> Tensors() const override {
    return {{name_ + "/weight",
             {filters_, window_.channels, window_.kernel, window_.kernel},
             TensorKind::kParameter,
             init_},
            {name_ + "/bias", {filters_}, TensorKind::kParameter, Initializer::Zeros()}};
  }
  // The columns of one image, and their gradients.
  int64_t scratch_elements() const override {
    return 2 * window_.channels * window_.kernel * window_.kernel * shape_[1] * shape_[2];
  }
  void Forward(ComputeBackend* backend, const Pass& pass, const float* weights, Inputs x, float* y) override {
    backend->Conv2dForward(window_, filters_, pass.n, x[0], weights, weights + WeightElements(), y);
  }
  void Backward(ComputeBackend* backend, const Pass& pass, const float* weights, Inputs x, const float*,
                const float* dy, Gradients dx, float* gradients) override {
    backend->Conv2dBackward(window_, filters_, pass.n, x[0], weights, dy, dx[0], gradients,
                            gradients + WeightElements());
  }

 private:
  int64_t WeightElements() const { return filters_ * window_.channels * window_.kernel * window_.kernel; }

  const std::string name_;
  const Window window_;
  const int64_t filters_;
  const Initializer init_;
};

class MaxPool final : public Layer {
 public:
  explicit MaxPool(const Window& window)
      : Layer({window.channels, window.out_height(), window.out_width()}), window_(window) {}

  absl::Status Reserve(ComputeBackend* backend, int64_t max_batch) override {
    WEIR_ASSIGN_OR_RETURN(argmax_, Buffer<int32_t>::Make(backend, ComputeBackend::Memory::kDevice,
                                                         max_batch * ShapeElements(shape_)));
    return absl::OkStatus();
  }
  void Forward(ComputeBackend* backend, const Pass& pass, const float*, Inputs x, float* y) override {
    backend->MaxPoolForward(window_, pass.n, x[0], y, argmax_.get());
  }
  void Backward(ComputeBackend* backend, const Pass& pass, const float*, Inputs, const float*,
                const float* dy, Gradients dx, float*) override {
    if (dx[0] != nullptr) backend->MaxPoolBackward(window_, pass.n, dy, argmax_.get(), dx[0]);
  }

 private:
  const Window window_;
  Buffer<int32_t> argmax_;
};

class Flatten final : public Layer {
 public:
  explicit Flatten(const Shape& input) : Layer({ShapeElements(input)}) {}

  bool is_view() const override { return true; }
  void Forward(ComputeBackend*, const Pass&, const float*, Inputs, float*) override {}
  void Backward(ComputeBackend*, const Pass&, const float*, Inputs, const float*, const float*, Gradients,
                float*) override {}
};

class ActivationLayer final : public Layer {
 public:
  ActivationLayer(Activation kind, Shape shape) : Layer(std::move(shape)), kind_(kind) {}

  void Forward(ComputeBackend* backend, const Pass& pass, const float*, Inputs x, float* y) override {
    backend->ActivationForward(kind_, pass.n * ShapeElements(shape_), x[0], y);
  }
  void Backward(ComputeBackend* backend, const Pass& pass, const float*, Inputs x, const float* y,
                const float* dy, Gradients dx, float*) override {
    if (dx[0] != nullptr)
      backend->ActivationBackward(kind_, pass.n * ShapeElements(shape_), x[0], y, dy, dx[0]);
  }

 private:
  const Activation kind_;
};

class DropoutLayer final : public Layer {
 public:
  DropoutLayer(const std::string& name, float rate, Shape shape)
      : Layer(std::move(shape)), purpose_("dropout/" + name), rate_(rate) {}

  bool is_random() const override { return true; }
  void Forward(ComputeBackend* backend, const Pass& pass, const float*, Inputs x, float* y) override {
    backend->Dropout(Mask(pass), pass.n * ShapeElements(shape_), x[0], y);
  }
  void Backward(ComputeBackend* backend, const Pass& pass, const float*, Inputs, const float*,
                const float* dy, Gradients dx, float*) override {
    if (dx[0] != nullptr) backend->Dropout(Mask(pass), pass.n * ShapeElements(shape_), dy, dx[0]);
  }

 private:
  DropoutMask Mask(const Pass& pass) const {
    return {pass.training ? rate_ : 0, RandomKey(pass.random.seed, purpose_), pass.random.batch,
            pass.random.first_example * ShapeElements(shape_)};
  }

  const std::string purpose_;
  const float rate_;
};

// ---- from the config ----

// Builds one layer; `where_` opens every message.
class Maker {
 public:
  Maker(const LayerConfig& config, int position, const std::vector<Shape>& shapes, const ModelInputs& inputs)
      : config_(config),
        shapes_(shapes),
        inputs_(inputs),
        input_(shapes.empty() ? no_input_ : shapes[0]),
        name_(LayerName(config, position)),
        where_(absl::StrCat("model.layers[", position, "]")) {}

  absl::StatusOr<std::unique_ptr<Layer>> Make() {
    switch (config_.type()) {
      case LayerConfig::LAYER_DENSE: {
        WEIR_RETURN_IF_ERROR(CheckFlat(input_));
        const int64_t units = config_.units();
        return {std::make_unique<Dense>(name_, input_[0], units, Init(input_[0], units))};
      }
      case LayerConfig::LAYER_CONV2D: {
        WEIR_ASSIGN_OR_RETURN(const Window window, MakeWindow(1));
        const int64_t area = window.kernel * window.kernel, filters = config_.filters();
        return {
            std::make_unique<Conv2d>(name_, window, filters, Init(window.channels * area, filters * area))};
      }
      case LayerConfig::LAYER_MAX_POOL: {
        WEIR_ASSIGN_OR_RETURN(const Window window, MakeWindow(config_.kernel()));
        return {std::make_unique<MaxPool>(window)};
      }
      case LayerConfig::LAYER_FLATTEN:
        return {std::make_unique<Flatten>(input_)};
      case LayerConfig::LAYER_RELU:
        return {std::make_unique<ActivationLayer>(Activation::kRelu, input_)};
      case LayerConfig::LAYER_GELU:
        return {std::make_unique<ActivationLayer>(Activation::kGelu, input_)};
      case LayerConfig::LAYER_TANH:
        return {std::make_unique<ActivationLayer>(Activation::kTanh, input_)};
      case LayerConfig::LAYER_DROPOUT:
        return {std::make_unique<DropoutLayer>(name_, config_.rate(), input_)};
      case LayerConfig::LAYER_EMBEDDING:
        return MakeEmbedding();
      case LayerConfig::LAYER_CONCAT:
        for (const Shape& shape : shapes_) WEIR_RETURN_IF_ERROR(CheckFlat(shape));
        return MakeConcat(shapes_);
      case LayerConfig::LAYER_CROSS:
        WEIR_RETURN_IF_ERROR(CheckFlat(input_));
        return MakeCross(name_, input_[0],
                         config_.has_init() ? Init(input_[0], input_[0])
                                            : Initializer::GlorotUniform(input_[0], input_[0]));
      case LayerConfig::LAYER_FACTORIZATION_MACHINE:
        for (const Shape& shape : shapes_) {
          if (shape == input_ && shape.size() == 1) continue;
          return absl::InvalidArgumentError(absl::StrCat(
              where_,
              " (factorization_machine) takes embeddings of one size, but its inputs have the shapes ",
              ShapeString(input_), " and ", ShapeString(shape), "; use tables of the same dim"));
        }
        return MakeFactorizationMachine(name_, static_cast<int64_t>(shapes_.size()), input_[0]);
      case LayerConfig::LAYER_UNSPECIFIED:
        break;  // refused with the config
    }
    std::abort();
  }

 private:
  absl::Status CheckFlat(const Shape& input) const {
    if (input.size() == 1) return absl::OkStatus();
    return Misfit(input, "takes a flat input [k]", "put a layer of type flatten before it");
  }

  absl::StatusOr<std::unique_ptr<Layer>> MakeEmbedding() const {
    const auto unknown = [&](absl::string_view field, const std::string& value, absl::string_view what,
                             const std::vector<std::string>& known) {
      return absl::InvalidArgumentError(absl::StrCat(
          where_, ".", field, " is \"", value, "\", which is no ", what, "; ",
          known.empty() ? "there are none" : absl::StrCat("there are ", absl::StrJoin(known, ", "))));
    };
    const auto column = std::find(inputs_.columns.begin(), inputs_.columns.end(), config_.column());
    if (column == inputs_.columns.end()) {
      return unknown("column", config_.column(), "column of data.columns of type categorical or key",
                     inputs_.columns);
    }
    EmbeddingSource source;
    source.column = static_cast<size_t>(column - inputs_.columns.begin());
    std::vector<std::string> tables;
    for (const v1::TableConfig& table : inputs_.tables) {
      if (table.name() == config_.table()) {
        source.table = static_cast<uint32_t>(tables.size());
        source.dim = table.dim();
        return MakeEmbeddingLayer(source, config_.pooling() == LayerConfig::POOLING_MEAN);
      }
      tables.push_back(table.name());
    }
    return unknown("table", config_.table(), "table of tables", tables);
  }

  absl::StatusOr<Window> MakeWindow(int64_t default_stride) const {
    if (input_.size() != 3) {
      return Misfit(input_, "takes images [channels, height, width]",
                    "use it before any flatten or dense layer, on image data");
    }
    Window window;
    window.channels = input_[0];
    window.height = input_[1];
    window.width = input_[2];
    window.kernel = config_.kernel();
    window.stride = config_.has_stride() ? config_.stride() : default_stride;
    window.padding = config_.padding();
    if (window.kernel > std::min(window.height, window.width) + 2 * window.padding) {
      return Misfit(input_,
                    absl::StrCat("has a kernel of ", window.kernel, " x ", window.kernel, " and padding ",
                                 window.padding),
                    "the kernel must fit into the padded image");
    }
    return window;
  }

  Initializer Init(int64_t fan_in, int64_t fan_out) const {
    switch (config_.init()) {
      case LayerConfig::INIT_ZEROS:
        return Initializer::Zeros();
      case LayerConfig::INIT_GLOROT_UNIFORM:
        return Initializer::GlorotUniform(fan_in, fan_out);
      case LayerConfig::INIT_HE_NORMAL:
      case LayerConfig::INIT_UNSPECIFIED:
        break;
    }
    return Initializer::HeNormal(fan_in);
  }

  absl::Status Misfit(const Shape& input, absl::string_view what, absl::string_view advice) const {
    return absl::InvalidArgumentError(absl::StrCat(where_, " (", LayerWord(config_.type()), ") ", what,
                                                   ", but its input has the shape ", ShapeString(input), "; ",
                                                   advice));
  }

  const Shape no_input_;
  const LayerConfig& config_;
  const std::vector<Shape>& shapes_;
  const ModelInputs& inputs_;
  const Shape& input_;  // the first
  const std::string name_;
  const std::string where_;
};

}  // namespace

ModelInputs ModelInputsOf(const v1::JobConfig& config, Shape features) {
  ModelInputs inputs(std::move(features));
  inputs.columns = KeyColumnNames(config.data());
  inputs.tables.assign(config.tables().begin(), config.tables().end());
  return inputs;
}

std::string ShapeString(const Shape& shape) { return absl::StrCat("[", absl::StrJoin(shape, ", "), "]"); }

int64_t ShapeElements(const Shape& shape) {
  int64_t n = 1;
  for (const int64_t d : shape) n *= d;
  return n;
}

std::string LayerWord(LayerConfig::Type type) {
  return absl::AsciiStrToLower(LayerConfig::Type_Name(type)).substr(sizeof "LAYER_" - 1);
}

std::string LayerName(const LayerConfig& config, int position) {
  return config.has_name() ? config.name() : absl::StrCat(LayerWord(config.type()), "_", position);
}

absl::StatusOr<std::unique_ptr<Layer>> MakeLayer(const LayerConfig& config, int position,
                                                 const std::vector<Shape>& input_shapes,
                                                 const ModelInputs& inputs) {
  WEIR_ASSIGN_OR_RETURN(std::unique_ptr<Layer> layer, Maker(config, position, input_shapes, inputs).Make());
  double elements = 1;
  for (const int64_t d : layer->output_shape()) elements *= static_cast<double>(d);
  if (elements > static_cast<double>(kMostElements)) {
    return absl::InvalidArgumentError(absl::StrCat("model.layers[", position, "] gives ", elements,
                                                   " values an example; at most ", kMostElements,
                                                   " are allowed"));
  }
  return layer;
}

}  // namespace weir
