// Training steps whose parts are replayed once they repeat, against the same steps call by call: on the
// emulated CUDA device, and on a device that replays by making the calls again.

#include <algorithm>
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

constexpr int64_t kMaxBatch = 20;

struct Options {
  bool queued = false;
  bool replays = true;
  bool rounds_gradients = false;
  uint64_t seed = 1;
  bool captures = true;  // the emulated device can capture
  Precision precision = Precision::kFloat32;
};

v1::ModelConfig Layers() {
  v1::ModelConfig config;
  REQUIRE(google::protobuf::TextFormat::ParseFromString(R"(
    layers { type: LAYER_CONV2D filters: 3 kernel: 3 } layers { type: LAYER_RELU }
    layers { type: LAYER_MAX_POOL kernel: 2 } layers { type: LAYER_FLATTEN }
    layers { type: LAYER_DENSE units: 9 } layers { type: LAYER_DROPOUT rate: 0.3 }
    layers { type: LAYER_DENSE units: 8 } layers { type: LAYER_GELU } layers { type: LAYER_DENSE units: 5 }
    loss: LOSS_SOFTMAX_CROSS_ENTROPY)",
                                                        &config));
  return config;
}

// The result of a pass.
struct Result {
  double loss = 0;
  std::vector<uint16_t> rounded;
  std::vector<float> gradients;
  bool operator==(const Result& other) const {
    return loss == other.loss && rounded == other.rounded && gradients == other.gradients;
  }
};

class Job {
 public:
  explicit Job(const Options& options) : options_(options) {
    if (options.queued) {
      backend_ = MakeQueuedBackend();
    } else {
      cuda_emulation::Machine machine;
      machine.seed = options.seed;
      machine.captures = options.captures;
      cuda_emulation::SetMachine(machine);
      backend_ = *cuda_emulation::MakeBackend(0, options.precision, 1 << 20);
    }
    DeviceOptions device;
    device.replays = options.replays;
    device.rounds_gradients = options.rounds_gradients;
    model_ = *Model::Create(Layers(), {1, 6, 6}, 5, kMaxBatch, backend_.get(), device);
    objects_ = cuda_emulation::LiveObjects();
  }
  // A gradient in two micro-batches of n examples; all but every fifth is already on the device.
  Result Step(uint64_t step, int64_t n, int64_t next_n) {
    RandomStream random(RandomKey(step, "replay_test"), 0);
    for (float& weight : model_->weights()) weight = UniformFloat(random.Next()) - 0.5f;
    model_->ZeroGradients();
    Traffic traffic;
    Result result;
    for (uint64_t part = 0; part < 2; ++part) {
      const uint64_t number = 2 * step + part;
      traffic.last = part == 1;
      traffic.queued = [&] {
        if (number % 5 != 0) model_->Prepare(BatchOf(number + 1, traffic.last ? next_n : n));
      };
      const auto loss = model_->ForwardBackward(BatchOf(number, n), 2 * n,
                                                {3, step, static_cast<int64_t>(part) * n}, traffic);
      REQUIRE(loss.ok());
      result.loss += *loss;
      traffic.new_weights = false;
    }
    if (options_.rounds_gradients) {
      result.rounded.assign(model_->rounded_gradients().begin(), model_->rounded_gradients().end());
    } else {
      result.gradients.assign(model_->gradients().begin(), model_->gradients().end());
    }
    return result;
  }
  std::vector<Result> Steps(const std::vector<int64_t>& sizes) {
    std::vector<Result> results;
    for (size_t i = 0; i < sizes.size(); ++i) {
      results.push_back(Step(i, sizes[i], sizes[std::min(i + 1, sizes.size() - 1)]));
      graphs.push_back(cuda_emulation::LiveObjects() - objects_);
    }
    return results;
  }
  // Objects of the emulated device after each step, not counting those before the first step.
  std::vector<int64_t> graphs;

 private:
  const Batch& BatchOf(uint64_t number, int64_t n) {
    if (batches_.count(number) == 0) {
      RandomStream random(RandomKey(number, "batch"), 0);
      Batch& batch = batches_[number];
      batch.n = n;
      for (int64_t i = 0; i < n * 36; ++i) batch.features.push_back(UniformFloat(random.Next()));
      for (int64_t i = 0; i < n; ++i) batch.labels.push_back(static_cast<int32_t>(random.NextBelow(5)));
    }
    return batches_[number];
  }

  const Options options_;
  std::unique_ptr<ComputeBackend> backend_;
  std::unique_ptr<Model> model_;
  std::map<uint64_t, Batch> batches_;
  int64_t objects_ = 0;
};

// The same steps without replays.
std::vector<Result> Called(Options options, const std::vector<int64_t>& sizes) {
  options.replays = false;
  return Job(options).Steps(sizes);
}

TEST_CASE("Steps that are replayed give the same bits, dropout included") {
  Options options;
  options.queued = GENERATE(false, true);
  options.rounds_gradients = GENERATE(false, true);
  if (!options.queued) options.seed = GENERATE(1, 2, 3);
  const std::vector<int64_t> sizes = {7, 7, 7, 4, 4, 7, 4, 4, 9, 7};
  const std::vector<Result> want = Called(options, sizes), got = Job(options).Steps(sizes);
  for (size_t i = 0; i < sizes.size(); ++i) {
    CAPTURE(i);
    CHECK((got[i] == want[i]));
  }
}

std::vector<int64_t> Graphs(const Options& options, const std::vector<int64_t>& sizes) {
  Job job(options);
  job.Steps(sizes);
  return job.graphs;
}

TEST_CASE("What repeats is captured once, what does not is not, and sizes without end are not kept") {
  Options options;
  const std::vector<int64_t> same(9, 7);
  const std::vector<int64_t> graphs = Graphs(options, same);
  // Of 4 parts of forward and 4 of backward those without dropout have a graph and its executable each. The
  // first layer's two and the last, with the loss, have one for each place of a batch.
  CHECK(graphs.back() == 2 * (6 + 3));
  CHECK(graphs[5] == graphs.back());
  options.replays = false;
  CHECK(Graphs(options, same).back() == 0);
  // Operands rounded once for one product would be rounded again in each graph.
  options.replays = true;
  options.precision = Precision::kBfloat16;
  CHECK(Graphs(options, same).back() == 0);
  options.precision = Precision::kFloat32;
  std::vector<int64_t> sizes;
  for (int round = 0; round < 3; ++round) {
    for (int64_t n = 1; n <= kMaxBatch; ++n) sizes.push_back(n);
  }
  Job many(options);
  CHECK((many.Steps(sizes) == Called(options, sizes)));
  CHECK(many.graphs.back() <= 2 * 16 * 6);
}

TEST_CASE("Where a device cannot capture, the calls are made") {
  Options options;
  options.captures = false;
  const std::vector<int64_t> sizes(5, 7);
  CHECK(Graphs(options, sizes).back() == 0);
  CHECK((Job(options).Steps(sizes) == Called(options, sizes)));
}

}  // namespace
}  // namespace weir
