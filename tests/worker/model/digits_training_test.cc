#include <vector>

#include "catch2/catch.hpp"
#include "tests/worker/digits.h"
#include "worker/data/dataset.h"
#include "worker/model/model.h"

namespace weir {
namespace {

using v1::LayerConfig;

void AddDense(v1::ModelConfig* config, uint32_t units) {
  LayerConfig* layer = config->add_layers();
  layer->set_type(LayerConfig::LAYER_DENSE);
  layer->set_units(units);
}

TEST_CASE("A small network learns the digits") {
  const Datasets& data = Digits();
  v1::ModelConfig config;
  config.add_layers()->set_type(LayerConfig::LAYER_FLATTEN);
  AddDense(&config, 64);
  config.add_layers()->set_type(LayerConfig::LAYER_RELU);
  AddDense(&config, 10);
  const auto backend = *MakeComputeBackend({"cpu"});
  constexpr int64_t kBatch = 32, kEpochs = 20;
  const auto model = *Model::Create(config, data.train.shape(), data.train.outputs(), kBatch, backend.get());
  const ModelSpec& spec = model->spec();
  for (size_t i = 0; i < spec.tensors.size(); ++i) {
    FillInitialValues(1, spec.tensors[i], 0,
                      model->weights().subspan(static_cast<size_t>(spec.offset(i)),
                                               static_cast<size_t>(spec.tensors[i].elements())));
  }

  ExampleOrder order(static_cast<int32_t>(data.train.size()), 1);
  std::vector<float> velocity(model->weights().size());
  std::vector<int32_t> indexes(kBatch);
  Batch batch;
  for (int64_t step = 0; step < kEpochs * data.train.size() / kBatch; ++step) {
    order.Fill(step * kBatch, absl::MakeSpan(indexes));
    data.train.Gather(indexes, &batch);
    model->ZeroGradients();
    REQUIRE(model->ForwardBackward(batch, kBatch, {1, static_cast<uint64_t>(step), 0}).ok());
    for (size_t i = 0; i < velocity.size(); ++i) {
      velocity[i] = 0.9f * velocity[i] + model->gradients()[i];
      model->weights()[i] -= 0.05f * velocity[i];
    }
  }
  const auto test = model->Evaluate(*data.test);
  REQUIRE(test.ok());
  CAPTURE(test->loss);
  CHECK(*test->accuracy > 0.95);
}

}  // namespace
}  // namespace weir
