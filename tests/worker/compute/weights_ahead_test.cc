// Weights that are copied to a device while it still computes with others: on the emulated CUDA device, and
// on a device that copies as early and as late as allowed.

#include <algorithm>
#include <limits>
#include <map>
#include <memory>
#include <string>
#include <vector>

#include "catch2/catch.hpp"
#include "common/base/random.h"
#include "google/protobuf/text_format.h"
#include "tests/worker/compute/cuda_emulation/emulation.h"
#include "tests/worker/compute/queued_backend.h"
#include "worker/compute/compute_backend.h"
#include "worker/model/model.h"

namespace weir {
namespace {

using Gradients = std::vector<float>;

std::unique_ptr<ComputeBackend> MakeDevice(const std::string& device) {
  if (device == "queued") return MakeQueuedBackend();
  cuda_emulation::Machine machine;
  machine.seed = device == "cuda, one order" ? 1 : 2;
  cuda_emulation::SetMachine(machine);
  const Precision precision = device == "cuda, bf16" ? Precision::kBfloat16 : Precision::kFloat32;
  return *cuda_emulation::MakeBackend(0, precision, 1 << 20);
}

v1::ModelConfig Mlp() {
  v1::ModelConfig config;
  REQUIRE(google::protobuf::TextFormat::ParseFromString(R"(
    layers { type: LAYER_DENSE units: 11 } layers { type: LAYER_RELU } layers { type: LAYER_DENSE units: 5 }
    layers { type: LAYER_TANH } layers { type: LAYER_DENSE units: 3 } loss: LOSS_SOFTMAX_CROSS_ENTROPY)",
                                                        &config));
  return config;
}

Batch MakeBatch(uint64_t seed) {
  RandomStream random(RandomKey(seed, "batch"), 0);
  Batch batch;
  batch.n = 6;
  for (int i = 0; i < 6 * 7; ++i) batch.features.push_back(UniformFloat(random.Next()) - 0.5f);
  for (int i = 0; i < 6; ++i) batch.labels.push_back(static_cast<int32_t>(random.NextBelow(3)));
  return batch;
}

// A model with several sets of weights on the host, where a device copies from.
struct Job {
  Job(const std::string& device, bool ahead) : backend(MakeDevice(device)) {
    DeviceOptions options;
    options.weights_ahead = ahead;
    model = *Model::Create(Mlp(), {7}, 3, 6, backend.get(), options);
    elements = model->spec().elements();
    gradients = NewMemory();
  }
  // The memory stays until the end, since freeing it would wait for all work.
  std::shared_ptr<float> NewMemory() {
    memory.push_back(*Buffer<float>::Make(backend.get(), ComputeBackend::Memory::kHost, elements));
    return {memory.back().get(), [](float*) {}};
  }
  void Fill(float* weights, uint64_t version) const {
    RandomStream random(RandomKey(version, "weights"), 0);
    for (int64_t i = 0; i < elements; ++i) weights[i] = UniformFloat(random.Next()) - 0.5f;
  }
  std::shared_ptr<float> NewWeights(uint64_t version) {
    const auto memory = NewMemory();
    Fill(memory.get(), version);
    return memory;
  }
  const Batch& BatchOf(uint64_t number) {
    if (batches.count(number) == 0) batches[number] = MakeBatch(number);
    return batches[number];
  }
  // The gradient over two micro-batches. `next` arrives after `looks` looks. The next batch is already on the
  // device, as in a training loop: a copy of it would come after the weights, and a wait for it would include
  // them.
  Gradients Compute(const std::shared_ptr<float>& weights, uint64_t version,
                    const std::shared_ptr<float>& next = nullptr, int looks = 0) {
    model->Bind(weights.get(), gradients.get());
    model->ZeroGradients();
    Traffic traffic;
    traffic.next_weights = [&]() -> std::shared_ptr<const float> {
      CHECK(traffic.last);
      CHECK(++asked <= looks + 1);
      return asked > looks ? next : nullptr;
    };
    asked = next == nullptr ? std::numeric_limits<int>::min() : 0;
    for (const uint64_t number : {2 * version, 2 * version + 1}) {
      traffic.last = number % 2 == 1;
      traffic.queued = [&] { model->Prepare(BatchOf(number + 1)); };
      REQUIRE(model->ForwardBackward(BatchOf(number), 12, {}, traffic).ok());
      traffic.new_weights = false;
    }
    return {gradients.get(), gradients.get() + elements};
  }

  const std::unique_ptr<ComputeBackend> backend;
  std::unique_ptr<Model> model;
  int64_t elements = 0;
  std::vector<Buffer<float>> memory;
  std::map<uint64_t, Batch> batches;
  std::shared_ptr<float> gradients;
  int asked = 0;
};

// The gradients of a model with one set of weights.
Gradients Expected(const std::string& device, uint64_t version) {
  Job job(device, false);
  return job.Compute(job.NewWeights(version), version);
}

std::string AnyDevice() { return GENERATE("queued", "cuda, one order", "cuda, another", "cuda, bf16"); }

TEST_CASE("Weights that come while others are computed with serve the next pass, and only that") {
  const std::string device = AnyDevice();
  const int looks = GENERATE(0, 1, 3, 1000);  // the last come too late
  CAPTURE(device, looks);
  std::vector<Gradients> got;
  {
    Job job(device, true);
    std::shared_ptr<float> weights = job.NewWeights(0);
    for (uint64_t version = 0; version < 5; ++version) {
      const auto next = job.NewWeights(version + 1);
      got.push_back(job.Compute(weights, version, next, looks));
      // The model holds the weights until it computes with them.
      if (looks == 0) CHECK(next.use_count() == 2);
      if (looks == 1000) CHECK(next.use_count() == 1);
      CHECK(weights.use_count() == 1);
      weights = next;
    }
  }
  for (uint64_t version = 0; version < 5; ++version) CHECK(got[version] == Expected(device, version));
}

TEST_CASE("What was copied ahead is not copied again") {
  const std::string device = AnyDevice();
  CAPTURE(device);
  Gradients got;
  {
    Job job(device, true);
    const auto next = job.NewWeights(1);
    job.Compute(job.NewWeights(0), 0, next);
    REQUIRE(job.backend->Wait(job.backend->Record()).ok());
    std::fill_n(next.get(), job.elements, std::numeric_limits<float>::quiet_NaN());
    got = job.Compute(next, 1);
  }
  CHECK(got == Expected(device, 1));
}

TEST_CASE("Weights that were copied ahead in vain are forgotten") {
  const std::string device = AnyDevice();
  CAPTURE(device);
  Gradients others, again;
  {
    Job job(device, true);
    const auto next = job.NewWeights(1);
    job.Compute(job.NewWeights(0), 0, next);
    others = job.Compute(job.NewWeights(2), 2);
    CHECK(next.use_count() == 1);
    // The same memory, another version.
    job.Fill(next.get(), 3);
    again = job.Compute(next, 3);
  }
  CHECK(others == Expected(device, 2));
  CHECK(again == Expected(device, 3));
}

}  // namespace
}  // namespace weir
