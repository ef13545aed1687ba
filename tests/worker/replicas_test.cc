#include "worker/replicas.h"

#include <cmath>
#include <numeric>

#include "catch2/catch.hpp"
#include "common/base/random.h"
#include "common/config/job_config.h"
#include "tests/worker/compute/queued_backend.h"
#include "tests/worker/digits.h"

namespace weir {
namespace {

v1::JobConfig Config() {
  auto config = ParseJobConfig(R"({
    "model": {"layers": [{"type": "flatten"}, {"type": "dense", "units": 40}, {"type": "relu"},
                         {"type": "dropout", "rate": 0.3}, {"type": "dense", "units": 10}]},
    "data": {"format": "digits", "batch_size": 33}})",
                               "test");
  REQUIRE(config.ok());
  return *config;
}

const Dataset& Train() { return Digits().train; }

struct Step {
  double loss = 0;
  std::vector<float> gradient;
};

// The first of two steps leaves gradients of other examples behind.
Step Compute(size_t replicas, uint32_t micro_batches, int32_t examples) {
  auto made = Replicas::Create(Config(), Train(), std::vector<std::string>(replicas, "cpu"));
  REQUIRE(made.ok());
  Model& model = (*made)->model();
  RandomStream random(RandomKey(1, "weights"), 0);
  Step step;
  for (const int32_t first : {500, 0}) {
    for (float& weight : model.weights())
      weight = 0.1f * (static_cast<float>(random.NextBelow(2000)) / 1000 - 1);
    std::vector<int32_t> indexes(static_cast<size_t>(examples));
    std::iota(indexes.begin(), indexes.end(), first);
    const auto loss = (*made)->ComputeGradient(Train(), indexes, micro_batches, 7, 3);
    REQUIRE(loss.ok());
    step.loss = *loss;
  }
  step.gradient.assign(model.gradients().begin(), model.gradients().end());
  return step;
}

double Distance(const Step& a, const Step& b) {
  REQUIRE(a.gradient.size() == b.gradient.size());
  double worst = std::abs(a.loss - b.loss);
  for (size_t i = 0; i < a.gradient.size(); ++i) {
    worst = std::max(worst, std::abs(static_cast<double>(a.gradient[i]) - b.gradient[i]));
  }
  return worst;
}

TEST_CASE("Replicas compute the gradient of the whole batch, dropout included") {
  for (const int32_t examples : {33, 32, 2, 1}) {
    const Step one = Compute(1, 1, examples);
    CHECK(one.loss > 0.1);
    for (const size_t replicas : {2, 3, 5}) {
      for (const uint32_t micro_batches : {1u, 4u}) {
        INFO(examples << " examples, " << replicas << " replicas, " << micro_batches << " micro-batches");
        CHECK(Distance(one, Compute(replicas, micro_batches, examples)) < 1e-5);
      }
    }
  }
}

TEST_CASE("The same replicas give the same bits") {
  const Step first = Compute(3, 2, 33);
  for (int i = 0; i < 5; ++i) CHECK(Distance(first, Compute(3, 2, 33)) == 0);
}

// Two devices, whose memory is not the host's.
std::unique_ptr<Replicas> OnDevices() {
  std::vector<std::unique_ptr<ComputeBackend>> backends;
  while (backends.size() < 2) backends.push_back(MakeQueuedBackend());
  auto made = Replicas::On(Config(), Train(), std::move(backends));
  REQUIRE(made.ok());
  return *std::move(made);
}

// The gradient of the first `examples` examples with these weights.
std::vector<float> GradientOn(Replicas* replicas, float weight, int32_t examples, bool new_weights) {
  Model& model = replicas->model();
  for (size_t i = 0; i < model.weights().size(); ++i) {
    model.weights()[i] = weight * (static_cast<float>(i % 7) - 3);
  }
  std::vector<int32_t> indexes(static_cast<size_t>(examples));
  std::iota(indexes.begin(), indexes.end(), 0);
  Traffic traffic;
  traffic.new_weights = new_weights;
  REQUIRE(replicas->ComputeGradient(Train(), indexes, 2, 7, 3, traffic).ok());
  return {model.gradients().begin(), model.gradients().end()};
}

TEST_CASE("A replica that had no examples when new weights came takes them with its next examples") {
  const auto replicas = OnDevices();
  GradientOn(replicas.get(), 0.01f, 33, /*new_weights=*/true);
  GradientOn(replicas.get(), 0.02f, 1, /*new_weights=*/true);
  const std::vector<float> expected = GradientOn(OnDevices().get(), 0.02f, 33, /*new_weights=*/true);
  for (int i = 0; i < 2; ++i) {
    CHECK((GradientOn(replicas.get(), 0.02f, 33, /*new_weights=*/false) == expected));
  }
}

TEST_CASE("A device that is not there is an error") {
  const auto made = Replicas::Create(Config(), Train(), {"cpu", "tpu"});
  CHECK(made.status().code() == absl::StatusCode::kInvalidArgument);
}

}  // namespace
}  // namespace weir
