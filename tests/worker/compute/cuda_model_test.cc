// Whole training steps with the CUDA code, on an emulated device, against those of the CPU.

#include <algorithm>
#include <cmath>
#include <string>
#include <vector>

#include "catch2/catch.hpp"
#include "common/base/random.h"
#include "common/model/model_spec.h"
#include "google/protobuf/text_format.h"
#include "tests/worker/compute/cuda_emulation/emulation.h"
#include "worker/compute/compute_backend.h"
#include "worker/model/model.h"

namespace weir {
namespace {

constexpr int64_t kMaxBatch = 9;

struct Step {
  double loss = 0;
  std::vector<float> gradients;
};

v1::ModelConfig Lenet() {
  v1::ModelConfig config;
  REQUIRE(google::protobuf::TextFormat::ParseFromString(R"(
    layers { type: LAYER_CONV2D filters: 4 kernel: 3 padding: 1 } layers { type: LAYER_RELU }
    layers { type: LAYER_MAX_POOL kernel: 2 }
    layers { type: LAYER_CONV2D filters: 5 kernel: 3 } layers { type: LAYER_TANH }
    layers { type: LAYER_FLATTEN } layers { type: LAYER_DENSE units: 33 } layers { type: LAYER_GELU }
    layers { type: LAYER_DROPOUT rate: 0.3 } layers { type: LAYER_DENSE units: 7 }
    loss: LOSS_SOFTMAX_CROSS_ENTROPY)",
                                                        &config));
  return config;
}

// Gradient descent over batches of several sizes.
std::vector<Step> Train(ComputeBackend* backend) {
  const auto model = *Model::Create(Lenet(), {2, 9, 10}, 7, kMaxBatch, backend);
  const ModelSpec& spec = model->spec();
  for (size_t i = 0; i < spec.tensors.size(); ++i) {
    FillInitialValues(3, spec.tensors[i], 0,
                      model->weights().subspan(static_cast<size_t>(spec.offset(i)),
                                               static_cast<size_t>(spec.tensors[i].elements())));
  }
  RandomStream random(5, 0);
  std::vector<Step> steps;
  int64_t allocations = 0;
  for (uint64_t i = 0; i < 4; ++i) {
    Batch batch;
    batch.n = kMaxBatch - static_cast<int64_t>(i);
    for (int64_t e = 0; e < batch.n * 180; ++e) batch.features.push_back(UniformFloat(random.Next()));
    for (int64_t e = 0; e < batch.n; ++e) batch.labels.push_back(static_cast<int32_t>(random.NextBelow(7)));
    model->ZeroGradients();
    RandomContext context;
    context.seed = 8;
    context.batch = i;
    const auto loss = model->ForwardBackward(batch, batch.n, context);
    REQUIRE(loss.ok());
    const absl::Span<float> weights = model->weights(), gradients = model->gradients();
    for (size_t e = 0; e < weights.size(); ++e) weights[e] -= 0.1f * gradients[e];
    steps.push_back({*loss, {gradients.begin(), gradients.end()}});
    if (i == 0) allocations = backend->allocations();
    CHECK(backend->allocations() == allocations);  // a step allocates no memory
  }
  return steps;
}

// error: a gradient's error, as a share of its largest value.
void CheckTraining(Precision precision, double error) {
  const auto cpu = *MakeComputeBackend({"cpu"});
  const std::vector<Step> want = Train(cpu.get());
  std::vector<Step> first;
  for (const uint64_t seed : {1, 2, 3}) {
    for (const size_t chunk_bytes : {0, 1 << 20}) {
      CAPTURE(seed, chunk_bytes);
      cuda_emulation::Machine machine;
      machine.seed = seed;
      cuda_emulation::SetMachine(machine);
      const auto cuda = *cuda_emulation::MakeBackend(0, precision, chunk_bytes);
      const std::vector<Step> got = Train(cuda.get());
      for (size_t i = 0; i < want.size(); ++i) {
        CAPTURE(i);
        CHECK(got[i].loss == Approx(want[i].loss).epsilon(error));
        double largest = 0, farthest = 0;
        for (size_t e = 0; e < want[i].gradients.size(); ++e) {
          const double value = want[i].gradients[e], difference = std::abs(got[i].gradients[e] - value);
          largest = std::max(largest, std::abs(value));
          farthest = std::isnan(difference) ? INFINITY : std::max(farthest, difference);
        }
        CHECK(farthest <= error * largest);
      }
      // The bits are the same in any order of blocks, threads and copies. Convolutions in other pieces add up
      // in another order.
      if (chunk_bytes == 0) continue;
      if (first.empty()) first = got;
      for (size_t i = 0; i < want.size(); ++i) CHECK(got[i].gradients == first[i].gradients);
    }
  }
}

// In float32 only the order of sums differs. Operands that are also off by 2^-11 (TF32) or 2^-8 (bfloat16)
// put some value on the other side of a ReLU or let another value win its pooling window. A gradient then
// moves by the contribution of one of a few hundred positions.
TEST_CASE("A model trains as on the CPU in float32") { CheckTraining(Precision::kFloat32, 1e-5); }
TEST_CASE("A model trains as on the CPU in tf32") { CheckTraining(Precision::kTf32, 0.02); }
TEST_CASE("A model trains as on the CPU in bfloat16") { CheckTraining(Precision::kBfloat16, 0.05); }

}  // namespace
}  // namespace weir
