#include "worker/model/model.h"

#include <cmath>
#include <string>
#include <vector>

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "catch2/catch.hpp"
#include "common/base/random.h"
#include "google/protobuf/text_format.h"
#include "tests/worker/compute/queued_backend.h"
#include "tests/worker/model/reference_model.h"

namespace weir {
namespace {

v1::ModelConfig Parse(const std::string& text) {
  v1::ModelConfig config;
  REQUIRE(google::protobuf::TextFormat::ParseFromString(text, &config));
  return config;
}

const std::string kDense2 = "layers { type: LAYER_DENSE units: 2 }";
const std::string kFlatten = "layers { type: LAYER_FLATTEN }";

std::unique_ptr<Model> MakeModel(const v1::ModelConfig& config, const std::vector<int64_t>& shape,
                                 int64_t outputs, ComputeBackend* backend, int64_t max_batch = 8) {
  auto model = Model::Create(config, shape, outputs, max_batch, backend);
  REQUIRE(model.ok());
  return std::move(*model);
}

void SetWeights(Model* model, uint64_t seed) {
  const ModelSpec& spec = model->spec();
  for (size_t i = 0; i < spec.tensors.size(); ++i) {
    TensorSpec tensor = spec.tensors[i];
    // Biases too, so that their place matters.
    if (tensor.init.value == 0) tensor.init = {Initializer::Kind::kUniform, 0.5f};
    FillInitialValues(seed, tensor, 0,
                      model->weights().subspan(static_cast<size_t>(spec.offset(i)),
                                               static_cast<size_t>(tensor.elements())));
  }
}

Batch RandomBatch(int64_t n, int64_t elements, int32_t classes) {
  RandomStream random(5, 0);
  Batch batch;
  batch.n = n;
  for (int64_t i = 0; i < n * elements; ++i) batch.features.push_back(2 * UniformFloat(random.Next()) - 1);
  for (int64_t i = 0; i < n; ++i) {
    if (classes > 0)
      batch.labels.push_back(static_cast<int32_t>(random.NextBelow(static_cast<uint32_t>(classes))));
    if (classes == 0) batch.targets.push_back(2 * UniformFloat(random.Next()) - 1);
  }
  return batch;
}

std::unique_ptr<ComputeBackend> MakeCpu() { return *MakeComputeBackend({"cpu"}); }

// Every element of the gradient against central differences of the reference in float64.
void CheckGradient(const std::string& text, const std::vector<int64_t>& shape, ComputeBackend* backend) {
  INFO(text);
  const v1::ModelConfig config = Parse(text);
  const int32_t classes = config.loss() == v1::ModelConfig::LOSS_MEAN_SQUARED_ERROR ? 0 : 2;
  const auto model = MakeModel(config, shape, classes == 0 ? 1 : 2, backend);
  SetWeights(model.get(), 3);
  const Batch batch = RandomBatch(5, ShapeElements(shape), classes);
  const RandomContext random{11, 4, 3};
  std::vector<double> weights(model->weights().begin(), model->weights().end());
  const auto loss = model->ForwardBackward(batch, 7, random);
  REQUIRE(loss.ok());
  CHECK(*loss == Approx(ReferenceLoss(config, shape, weights, batch, random)).epsilon(1e-5));
  for (size_t i = 0; i < weights.size(); ++i) {
    constexpr double kStep = 1e-6;
    const double weight = weights[i];
    weights[i] = weight + kStep;
    const double above = ReferenceLoss(config, shape, weights, batch, random);
    weights[i] = weight - kStep;
    const double below = ReferenceLoss(config, shape, weights, batch, random);
    weights[i] = weight;
    const double want = (above - below) / (2 * kStep) / 7;
    const bool close = std::abs(model->gradients()[i] - want) < 1e-5 * (1 + std::abs(want));
    if (!close) {
      CAPTURE(model->spec().Describe(static_cast<int64_t>(i)), model->gradients()[i], want);
      CHECK(close);
      return;
    }
  }
}

TEST_CASE("Gradients agree with finite differences in float64") {
  const std::string conv = "layers { type: LAYER_CONV2D filters: 3 kernel: 3 } ";
  const std::string wide_conv =
      "layers { type: LAYER_CONV2D filters: 2 kernel: 3 stride: 2 padding: 1 init: INIT_GLOROT_UNIFORM } ";
  const std::string pool = "layers { type: LAYER_MAX_POOL kernel: 2 } ";
  const std::string overlapping_pool = "layers { type: LAYER_MAX_POOL kernel: 3 stride: 1 } ";
  const std::string dense5 = "layers { type: LAYER_DENSE units: 5 init: INIT_GLOROT_UNIFORM } ";
  const std::string relu = "layers { type: LAYER_RELU } ", gelu = "layers { type: LAYER_GELU } ";
  const std::string tanh = "layers { type: LAYER_TANH } ",
                    dropout = "layers { type: LAYER_DROPOUT rate: 0.4 } ";
  const std::string squared = "layers { type: LAYER_DENSE units: 1 } loss: LOSS_MEAN_SQUARED_ERROR ";
  const std::vector<int64_t> row{7}, image{2, 7, 6};
  for (const bool queued : {false, true}) {
    CAPTURE(queued);
    const auto backend = queued ? MakeQueuedBackend() : MakeCpu();
    // Each layer between others that have parameters.
    CheckGradient(kDense2, row, backend.get());
    CheckGradient(squared, row, backend.get());
    CheckGradient(dense5 + relu + kDense2, row, backend.get());
    CheckGradient(dense5 + gelu + kDense2, row, backend.get());
    CheckGradient(dense5 + tanh + kDense2, row, backend.get());
    CheckGradient(dense5 + dropout + kDense2, row, backend.get());
    CheckGradient(conv + kFlatten + kDense2, image, backend.get());
    CheckGradient(wide_conv + wide_conv + kFlatten + kDense2, image, backend.get());
    CheckGradient(conv + pool + kFlatten + kDense2, image, backend.get());
    CheckGradient(conv + overlapping_pool + kFlatten + kDense2, image, backend.get());
    // Layers without parameters before the first layer with parameters, and after the last.
    CheckGradient(dropout + tanh + pool + kFlatten + kDense2 + tanh, image, backend.get());
    // Whole models.
    CheckGradient(conv + relu + pool + dropout + kFlatten + dense5 + gelu + dropout + kDense2, image,
                  backend.get());
    CheckGradient(wide_conv + tanh + conv + kFlatten + dropout + dense5 + relu + squared, image,
                  backend.get());
  }
}

TEST_CASE("Micro-batches add up to the batch, dropout included") {
  const auto backend = MakeCpu();
  const auto model = MakeModel(
      Parse("layers { type: LAYER_DENSE units: 9 } layers { type: LAYER_DROPOUT rate: 0.5 } " + kDense2), {3},
      2, backend.get());
  SetWeights(model.get(), 1);
  const Batch batch = RandomBatch(8, 3, 2);
  const double whole_loss = *model->ForwardBackward(batch, 8, {1, 2, 0});
  const std::vector<float> whole(model->gradients().begin(), model->gradients().end());
  model->ZeroGradients();
  double loss = 0;
  for (const auto& [first, n] : {std::pair<int64_t, int64_t>{0, 3}, {3, 4}, {7, 1}}) {
    Batch micro;
    micro.n = n;
    micro.features.assign(batch.features.begin() + first * 3, batch.features.begin() + (first + n) * 3);
    micro.labels.assign(batch.labels.begin() + first, batch.labels.begin() + first + n);
    loss += *model->ForwardBackward(micro, 8, {1, 2, first});
  }
  CHECK(loss == Approx(whole_loss));
  for (size_t i = 0; i < whole.size(); ++i) CHECK(model->gradients()[i] == Approx(whole[i]).margin(1e-6));
}

TEST_CASE("Dropout depends on seed and batch, and on nothing else") {
  const auto backend = MakeCpu();
  const auto model = MakeModel(
      Parse("layers { type: LAYER_DENSE units: 64 } layers { type: LAYER_DROPOUT rate: 0.5 } " + kDense2),
      {3}, 2, backend.get());
  SetWeights(model.get(), 1);
  const Batch batch = RandomBatch(8, 3, 2);
  const double loss = *model->ForwardBackward(batch, 8, {1, 2, 0});
  CHECK(*model->ForwardBackward(batch, 8, {1, 3, 0}) != loss);
  CHECK(*model->ForwardBackward(batch, 8, {2, 2, 0}) != loss);
  CHECK(*model->ForwardBackward(batch, 8, {1, 2, 8}) != loss);
  CHECK(*model->ForwardBackward(batch, 8, {1, 2, 0}) == loss);
}

TEST_CASE("Gradients are reported from the last tensor to the first, complete") {
  const std::string text =
      "layers { type: LAYER_CONV2D name: 'stem' filters: 2 kernel: 3 } layers { type: LAYER_RELU } " +
      kFlatten + "layers { type: LAYER_DENSE units: 4 } " + kDense2;
  for (const bool queued : {false, true}) {
    const auto backend = queued ? MakeQueuedBackend() : MakeCpu();
    const auto model = MakeModel(Parse(text), {1, 4, 4}, 2, backend.get());
    const ModelSpec& spec = model->spec();
    std::vector<std::string> names;
    for (const TensorSpec& tensor : spec.tensors) names.push_back(tensor.name);
    CHECK(names == std::vector<std::string>{"stem/weight", "stem/bias", "dense_3/weight", "dense_3/bias",
                                            "dense_4/weight", "dense_4/bias"});
    CHECK(spec.tensors[0].shape == std::vector<int64_t>{2, 1, 3, 3});
    CHECK(spec.tensors[2].shape == std::vector<int64_t>{8, 4});
    SetWeights(model.get(), 1);
    std::vector<size_t> order;
    std::vector<float> seen(model->gradients().size());
    Traffic traffic;
    traffic.gradient_ready = [&](size_t tensor) {
      order.push_back(tensor);
      const size_t first = static_cast<size_t>(spec.offset(tensor)),
                   end = static_cast<size_t>(spec.offset(tensor + 1));
      std::copy(model->gradients().begin() + first, model->gradients().begin() + end, seen.begin() + first);
    };
    REQUIRE(model->ForwardBackward(RandomBatch(3, 16, 2), 3, {}, traffic).ok());
    CHECK(order == std::vector<size_t>{5, 4, 3, 2, 1, 0});
    CHECK(seen == std::vector<float>(model->gradients().begin(), model->gradients().end()));
  }
}

// conv2d, two dense layers: six tensors.
const std::string kThreeLayers =
    "layers { type: LAYER_CONV2D filters: 2 kernel: 3 } layers { type: LAYER_RELU } " + kFlatten +
    "layers { type: LAYER_DENSE units: 4 } " + kDense2;

TEST_CASE("A layer's weights may come when forward gets to it, wherever they lie") {
  const bool queued = GENERATE(false, true);
  const auto backend = queued ? MakeQueuedBackend() : MakeCpu();
  const auto model = MakeModel(Parse(kThreeLayers), {1, 4, 4}, 2, backend.get());
  SetWeights(model.get(), 1);
  const Batch batch = RandomBatch(3, 16, 2);
  const double loss = *model->ForwardBackward(batch, 3, {});
  const std::vector<float> weights(model->weights().begin(), model->weights().end());
  const std::vector<float> gradient(model->gradients().begin(), model->gradients().end());

  std::vector<float> here(weights.size(), NAN), there(weights.size(), NAN);
  model->Bind(here.data(), there.data());
  Traffic traffic;
  std::vector<size_t> asked;
  bool forward_done = false;
  traffic.await_weights = [&](size_t first, size_t end) {
    asked.insert(asked.end(), {first, end});
    const auto begin = model->spec().offset(first), after = model->spec().offset(end);
    std::copy(weights.begin() + begin, weights.begin() + after, here.begin() + begin);
    return absl::OkStatus();
  };
  traffic.forward_done = [&] {
    CHECK(asked == std::vector<size_t>{0, 2, 2, 4, 4, 6});
    forward_done = true;
    return absl::OkStatus();
  };
  traffic.gradient_ready = [&](size_t) { CHECK(forward_done); };
  model->ZeroGradients();
  CHECK(*model->ForwardBackward(batch, 3, {}, traffic) == loss);
  CHECK(there == gradient);

  // The same weights are not requested again; of a gradient in two parts only the second one hands it over.
  model->ZeroGradients();
  Traffic first, second;
  first.new_weights = second.new_weights = first.last = false;
  first.await_weights = second.await_weights = [](size_t, size_t) { return absl::InternalError("asked"); };
  first.forward_done = [] { return absl::InternalError("not the last part"); };
  first.gradient_ready = [](size_t) { FAIL_CHECK("not the last part"); };
  size_t ready = 0;
  second.gradient_ready = [&](size_t) { ++ready; };
  REQUIRE(model->ForwardBackward(batch, 6, {}, first).ok());
  CHECK(ready == 0);
  REQUIRE(model->ForwardBackward(batch, 6, {}, second).ok());
  CHECK(ready == 6);
  for (size_t i = 0; i < gradient.size(); ++i) CHECK(there[i] == Approx(gradient[i]).margin(1e-6));
}

TEST_CASE("A batch that was prepared is that of the next pass, another one is not mistaken for it") {
  const bool queued = GENERATE(false, true);
  const auto backend = queued ? MakeQueuedBackend() : MakeCpu();
  const auto model = MakeModel(Parse(kThreeLayers), {1, 4, 4}, 2, backend.get());
  SetWeights(model.get(), 1);
  Batch batches[3] = {RandomBatch(3, 16, 2), RandomBatch(5, 16, 2), RandomBatch(4, 16, 2)};
  double losses[3];
  for (size_t i = 0; i < 3; ++i) {
    for (float& value : batches[i].features) value += static_cast<float>(i);
    losses[i] = *model->ForwardBackward(batches[i], 3, {});
  }
  const auto pass = [&](size_t batch, size_t next) {
    Traffic traffic;
    traffic.queued = [&, next] { model->Prepare(batches[next]); };
    return *model->ForwardBackward(batches[batch], 3, {}, traffic);
  };
  CHECK(pass(0, 1) == losses[0]);
  CHECK(pass(1, 2) == losses[1]);
  // Not the prepared batch; then that batch, with its contents now.
  CHECK(pass(0, 0) == losses[0]);
  CHECK(pass(2, 0) == losses[2]);
  CHECK(pass(1, 0) == losses[1]);
  // A batch prepared in vain is forgotten, since by now it may hold other examples.
  CHECK(*model->ForwardBackward(batches[2], 3, {}) == losses[2]);
  batches[0] = batches[1];
  CHECK(*model->ForwardBackward(batches[0], 3, {}) == losses[1]);
}

TEST_CASE("A pass whose weights do not come, or whose gradient nobody can take, ends and may be made again") {
  const bool queued = GENERATE(false, true);
  const auto backend = queued ? MakeQueuedBackend() : MakeCpu();
  const auto model = MakeModel(Parse(kThreeLayers), {1, 4, 4}, 2, backend.get());
  SetWeights(model.get(), 1);
  const Batch batch = RandomBatch(3, 16, 2);
  const double loss = *model->ForwardBackward(batch, 3, {});
  const std::vector<float> gradient(model->gradients().begin(), model->gradients().end());
  const std::vector<float> weights(model->weights().begin(), model->weights().end());
  Traffic traffic;
  traffic.await_weights = [&](size_t first, size_t) {
    return first < 4 ? absl::OkStatus() : absl::DataLossError("cut short");
  };
  {
    std::vector<float> gone(weights.begin(), weights.end()), unused(weights.size());
    model->Bind(gone.data(), unused.data());
    CHECK(model->ForwardBackward(batch, 3, {}, traffic).status() == absl::DataLossError("cut short"));
    // No queued operation reads them any more.
  }
  std::vector<float> here(weights.begin(), weights.end()), there(weights.size());
  model->Bind(here.data(), there.data());
  traffic.await_weights = nullptr;
  traffic.forward_done = [] { return absl::AbortedError("fenced"); };
  CHECK(model->ForwardBackward(batch, 3, {}, traffic).status() == absl::AbortedError("fenced"));
  model->ZeroGradients();
  CHECK(*model->ForwardBackward(batch, 3, {}) == loss);
  CHECK(there == gradient);
}

TEST_CASE("Initial values follow the config") {
  const auto backend = MakeCpu();
  const auto model = MakeModel(Parse("layers { type: LAYER_CONV2D filters: 4 kernel: 3 } layers { type: "
                                     "LAYER_CONV2D filters: 6 kernel: 2 "
                                     "init: INIT_GLOROT_UNIFORM } " +
                                     kFlatten + "layers { type: LAYER_DENSE units: 2 init: INIT_ZEROS }"),
                               {5, 4, 4}, 2, backend.get());
  const auto& tensors = model->spec().tensors;
  CHECK(tensors[0].init.kind == Initializer::Kind::kNormal);
  CHECK(tensors[0].init.value == Approx(std::sqrt(2.0 / (5 * 9))));
  CHECK(tensors[1].init.value == 0);
  CHECK(tensors[2].init.kind == Initializer::Kind::kUniform);
  CHECK(tensors[2].init.value == Approx(std::sqrt(6.0 / (4 * 4 + 6 * 4))));
  CHECK(tensors[4].init.kind == Initializer::Kind::kConstant);
}

TEST_CASE("Evaluation goes over the whole data set without dropout") {
  for (const bool queued : {false, true}) {
    const auto backend = queued ? MakeQueuedBackend() : MakeCpu();
    const auto model = MakeModel(Parse("layers { type: LAYER_DROPOUT rate: 0.9 } " + kDense2), {2}, 2,
                                 backend.get(), /*max_batch=*/3);
    // The logits are the features.
    const std::vector<float> identity{1, 0, 0, 1, 0, 0};
    std::copy(identity.begin(), identity.end(), model->weights().begin());
    const Dataset data({2}, std::vector<uint8_t>{9, 1, 9, 1, 1, 9, 9, 1}, 1, {0, 0, 1, 1}, 2);
    const auto result = model->Evaluate(data);
    REQUIRE(result.ok());
    CHECK(result->examples == 4);
    CHECK(result->accuracy == 0.75);
    CHECK(result->loss == Approx((8 + 4 * std::log1p(std::exp(-8.0))) / 4));

    const auto regression = MakeModel(
        Parse("layers { type: LAYER_DENSE units: 1 } loss: LOSS_MEAN_SQUARED_ERROR"), {2}, 1, backend.get());
    const std::vector<float> sum{1, 1, 0};
    std::copy(sum.begin(), sum.end(), regression->weights().begin());
    const auto error =
        regression->Evaluate(Dataset({2}, std::vector<float>{1, 2, 3, 4}, 1, std::vector<float>{3, 9}));
    REQUIRE(error.ok());
    CHECK_FALSE(error->accuracy.has_value());
    CHECK(error->loss == Approx(2));
  }
}

TEST_CASE("A model that does not fit together is refused with the place and the reason") {
  const std::vector<int64_t> image{1, 8, 8}, row{5};
  const struct {
    std::string text;
    std::vector<int64_t> shape;
    std::string message;
  } cases[] = {
      {kDense2, image,
       "model.layers[0] (dense) takes a flat input [k], but its input has the shape [1, 8, 8]; put a layer "
       "of type flatten before it"},
      {"layers { type: LAYER_CONV2D filters: 2 kernel: 3 }", row,
       "model.layers[0] (conv2d) takes images [channels, height, width], but its input has the shape [5]; "
       "use it before any flatten or dense "
       "layer, on image data"},
      {"layers { type: LAYER_MAX_POOL kernel: 4 } layers { type: LAYER_MAX_POOL kernel: 3 }", image,
       "model.layers[1] (max_pool) has a kernel of 3 x 3 and padding 0, but its input has the shape [1, 2, "
       "2]; the kernel must fit into the "
       "padded image"},
      {"layers { type: LAYER_DENSE units: 3 }", row,
       "model.layers[0] is the last and gives the shape [3], but the data needs [2] (one logit for each "
       "class: the largest label is 1, or data.classes is 2); end with a dense layer of 2 units, or set "
       "data.classes, which finds labels that are too large"},
      {"layers { type: LAYER_CONV2D filters: 2 kernel: 8 }", image,
       "model.layers[0] is the last and gives the shape [2, 1, 1], but the data needs [2] (one logit for "
       "each class: the largest label is 1, or data.classes is 2); end with a dense layer of 2 units, or set "
       "data.classes, which finds labels that are too large"},
      {kFlatten, {1, 2, 1}, "model.layers: the model has no tensors"},
      {"layers { type: LAYER_DENSE units: 2 } layers { type: LAYER_DENSE units: 2 name: 'dense_0' }", row,
       "model.layers: two tensors are named 'dense_0/weight'"},
  };
  const auto backend = MakeCpu();
  for (const auto& c : cases) {
    const auto model = Model::Create(Parse(c.text), c.shape, 2, 4, backend.get());
    CHECK(model.status().message() == c.message);
    CHECK(model.status().code() == absl::StatusCode::kInvalidArgument);
  }
}

}  // namespace
}  // namespace weir
