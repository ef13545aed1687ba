// Steps that depend on norms over all shards: the mean is clipped, LAMB scales its update by tensor.
#include <cmath>
#include <map>
#include <memory>
#include <string>
#include <vector>

#include "catch2/catch.hpp"
#include "common/model/partition.h"
#include "common/optimizer/kernels.h"
#include "ps_server/shard/versions/block_store.h"
#include "tests/common/optimizer/testing.h"

namespace weir {
namespace {

// Tensors that share runs of 16 elements, with a buffer between them.
ModelSpec OddModel() {
  ModelSpec model;
  model.tensors = {
      {"a/weight", {7, 13}, TensorKind::kParameter, Initializer::HeNormal(7)},
      {"a/zeros", {5}, TensorKind::kParameter, Initializer::Zeros()},
      {"stats", {50}, TensorKind::kBuffer, Initializer::Zeros()},
      {"frozen", {3}, TensorKind::kParameter, {Initializer::Kind::kConstant, 2}},
      {"b/weight", {523}, TensorKind::kParameter, Initializer::GlorotUniform(3, 4)},
  };
  return model;
}

// A part of a step, for the whole model.
struct WholePart {
  std::vector<float> gradient;
  double weight;
};

// All shards of a job, and what ps:0 makes of what they measure.
class Cluster {
 public:
  Cluster(const v1::OptimizerConfig& optimizer, uint32_t shards, double max_norm, const Kernels& kernels)
      : partition_(OddModel().elements(), shards), max_norm_(max_norm) {
    for (uint32_t shard = 0; shard < shards; ++shard) {
      BlockStore::Options options;
      options.model = OddModel();
      options.optimizer = optimizer;
      options.kernels = &kernels;
      options.threads = &threads_;
      options.shard = shard;
      options.num_shards = shards;
      auto store = BlockStore::Create(std::move(options));
      REQUIRE(store.ok());
      stores_.push_back(*std::move(store));
    }
  }

  void Step(const std::vector<WholePart>& parts) {
    std::vector<std::vector<Slab>> memory(stores_.size());
    std::vector<std::vector<WeightedGradient>> gradients(stores_.size());
    for (uint32_t shard = 0; shard < stores_.size(); ++shard) {
      for (const WholePart& part : parts) {
        const Slab& slab = memory[shard].emplace_back(stores_[shard]->TakeSlab());
        ForElements(shard, [&](int64_t local, int64_t at) { slab.get()[local] = part.gradient[at]; });
        gradients[shard].push_back({slab.get(), part.weight});
      }
    }
    StepFactors factors;
    if (max_norm_ > 0) {
      const StepSquares all = Measure(gradients, 0);
      CHECK(all.tensors.empty());
      norm = std::sqrt(all.gradient.value());
      if (norm > max_norm_) factors.gradient = max_norm_ / norm;
    }
    const StepSquares all = Measure(gradients, factors.gradient);
    factors.tensors.assign(OddModel().tensors.size(), 1);
    measured = all.tensors;
    for (const auto& [tensor, of] : all.tensors) {
      const double weights = std::sqrt(of.weights.value()), update = std::sqrt(of.update.value());
      if (weights > 0 && update > 0) factors.tensors[tensor] = weights / update;
    }
    for (uint32_t shard = 0; shard < stores_.size(); ++shard) {
      stores_[shard]->Update(gradients[shard], factors);
    }
  }

  std::vector<float> Weights() const {
    std::vector<float> out(OddModel().elements(), -99);
    for (uint32_t shard = 0; shard < stores_.size(); ++shard) {
      const auto version = stores_[shard]->Lend();
      ForElements(shard, [&](int64_t local, int64_t at) { out[at] = version->weights.get()[local]; });
    }
    return out;
  }

  // Of the last step.
  double norm = 0;
  std::map<size_t, StepSquares::OfTensor> measured;

 private:
  template <typename Visit>
  void ForElements(uint32_t shard, const Visit& visit) const {
    for (int64_t b = 0; b < partition_.shard_blocks(shard); ++b) {
      for (int64_t i = 0; i < partition_.block_length(shard, b); ++i) {
        visit(b * partition_.block_size() + i, partition_.block_start(shard, b) + i);
      }
    }
  }

  StepSquares Measure(const std::vector<std::vector<WeightedGradient>>& gradients, double factor) const {
    StepSquares all;
    for (uint32_t shard = 0; shard < stores_.size(); ++shard) {
      const StepSquares own = stores_[shard]->Measure(gradients[shard], factor);
      all.gradient.Add(own.gradient);
      for (const auto& [tensor, of] : own.tensors) {
        all.tensors[tensor].weights.Add(of.weights);
        all.tensors[tensor].update.Add(of.update);
      }
    }
    return all;
  }

  const Partition partition_;
  const double max_norm_;
  ThreadPool threads_{2};
  std::vector<std::shared_ptr<BlockStore>> stores_;
};

v1::OptimizerConfig Lamb() {
  v1::OptimizerConfig config;
  config.set_type(v1::OptimizerConfig::KIND_LAMB);
  config.set_learning_rate(0.01f);
  config.set_weight_decay(0.1f);
  config.set_epsilon(1e-6f);
  v1::GroupConfig& frozen = *config.add_groups();
  frozen.set_match("frozen");
  frozen.set_frozen(true);
  v1::GroupConfig& slower = *config.add_groups();
  slower.set_match("b/*");
  slower.set_learning_rate_factor(0.5f);
  slower.set_weight_decay(0);
  return config;
}

std::vector<WholePart> Parts(uint64_t step) {
  const auto n = static_cast<size_t>(OddModel().elements());
  return {{RandomFloats(2 * step, n, 1), 8}, {RandomFloats(2 * step + 1, n, 0.5f), 3}};
}

// You et al. 2020, algorithm 2, in float64; the mean is clipped as torch's clip_grad_norm_ does it.
class Reference {
 public:
  Reference(const std::vector<float>& initial, double max_norm)
      : w(initial.begin(), initial.end()), m_(w.size()), v_(w.size()), max_norm_(max_norm) {}

  void Step(const std::vector<WholePart>& parts, int t) {
    double total = 0;
    for (const WholePart& part : parts) total += part.weight;
    std::vector<double> g(w.size());
    for (const WholePart& part : parts) {
      for (size_t i = 0; i < g.size(); ++i) g[i] += part.gradient[i] * part.weight / total;
    }
    const ModelSpec model = OddModel();
    const auto visit = [&](size_t tensor, const auto& each) {
      const auto first = static_cast<size_t>(model.offset(tensor));
      for (size_t i = first; i < first + static_cast<size_t>(model.tensors[tensor].elements()); ++i) each(i);
    };
    double squares = 0;
    for (size_t tensor : {0, 1, 3, 4}) visit(tensor, [&](size_t i) { squares += g[i] * g[i]; });
    norm = std::sqrt(squares);
    const double factor = max_norm_ > 0 && norm > max_norm_ ? max_norm_ / norm : 1;
    visit(2, [&](size_t i) { w[i] = g[i]; });
    for (size_t tensor : {0, 1, 4}) {
      const double decay = tensor == 4 ? 0 : 0.1, rate = tensor == 4 ? 0.005 : 0.01;
      std::vector<double> u(w.size());
      double of_weights = 0, of_update = 0;
      visit(tensor, [&](size_t i) {
        const double clipped = factor * g[i];
        m_[i] = 0.9 * m_[i] + 0.1 * clipped;
        v_[i] = 0.999 * v_[i] + 0.001 * clipped * clipped;
        const double r =
            m_[i] / (1 - std::pow(0.9, t)) / (std::sqrt(v_[i] / (1 - std::pow(0.999, t))) + 1e-6);
        u[i] = r + decay * w[i];
        of_weights += w[i] * w[i];
        of_update += u[i] * u[i];
      });
      const double ratio = of_weights > 0 && of_update > 0 ? std::sqrt(of_weights / of_update) : 1;
      visit(tensor, [&](size_t i) { w[i] -= rate * ratio * u[i]; });
    }
  }

  std::vector<double> w;
  double norm = 0;

 private:
  std::vector<double> m_, v_;
  const double max_norm_;
};

TEST_CASE("LAMB is that of the paper over 1,000 steps, with a clipped mean and without") {
  for (const double max_norm : {0.0, 3.0}) {
    CAPTURE(max_norm);
    Cluster cluster(Lamb(), 3, max_norm, BestKernels());
    const std::vector<float> initial = cluster.Weights();
    Reference reference(initial, max_norm);
    double farthest = 0;
    for (int t = 1; t <= 1000; ++t) {
      cluster.Step(Parts(static_cast<uint64_t>(t)));
      reference.Step(Parts(static_cast<uint64_t>(t)), t);
      if (max_norm > 0) REQUIRE(cluster.norm == Approx(reference.norm).epsilon(1e-6));
      const std::vector<float> weights = cluster.Weights();
      for (size_t i = 0; i < weights.size(); ++i) {
        farthest = std::max(farthest, std::abs(weights[i] - reference.w[i]));
      }
    }
    CHECK(farthest < 2e-5);
    CHECK(reference.w[0] != Approx(initial[0]).margin(0.01));  // the weights moved
    CHECK(cluster.measured.count(3) == 0);                     // frozen
    const auto frozen = static_cast<size_t>(OddModel().offset(3));
    CHECK(cluster.Weights()[frozen] == 2);
  }
}

TEST_CASE("Steps that depend on norms have the same bits for any number of shards, at every level") {
  v1::OptimizerConfig sgd;
  sgd.set_type(v1::OptimizerConfig::KIND_SGD);
  for (const v1::OptimizerConfig& optimizer : {Lamb(), sgd}) {
    std::vector<float> expected;
    for (KernelLevel level : AvailableKernelLevels()) {
      for (uint32_t shards : {1, 2, 3, 7, 50}) {
        CAPTURE(shards, static_cast<int>(level));
        Cluster cluster(optimizer, shards, 3, **KernelsFor(level));
        for (uint64_t step = 0; step < 5; ++step) cluster.Step(Parts(step));
        CHECK(cluster.norm > 3);
        if (expected.empty()) expected = cluster.Weights();
        CHECK(cluster.Weights() == expected);
      }
    }
  }
}

TEST_CASE("The mean is scaled before the step, but for buffers, and parts stay as they are") {
  ThreadPool threads(1);
  BlockStore::Options options;
  options.model.tensors = {{"w", {20}, TensorKind::kParameter, {Initializer::Kind::kConstant, 10}},
                           {"stats", {20}, TensorKind::kBuffer, {Initializer::Kind::kConstant, 10}},
                           {"x", {20}, TensorKind::kParameter, {Initializer::Kind::kConstant, 10}}};
  options.optimizer.set_type(v1::OptimizerConfig::KIND_SGD);
  options.optimizer.set_learning_rate(-1);
  options.kernels = &BestKernels();
  options.threads = &threads;
  const auto store = *BlockStore::Create(std::move(options));
  const std::vector<float> one(60, 1), five(60, 5);
  for (const bool single : {true, false}) {
    const std::vector<float> before(store->Lend()->weights.get(), store->Lend()->weights.get() + 60);
    std::vector<WeightedGradient> parts = {{one.data(), 3}};
    if (!single) parts.push_back({five.data(), 1});
    const float mean = single ? 1 : 2;
    CHECK(store->Measure(parts, 0).gradient.value() == 40 * mean * mean);
    store->Update(parts, {0.5, {1, 1, 4}});
    const auto version = store->Lend();
    for (int i = 0; i < 20; ++i) {
      CHECK(version->weights.get()[i] == before[i] + 0.5f * mean);
      CHECK(version->weights.get()[20 + i] == mean);
      CHECK(version->weights.get()[40 + i] == before[40 + i] + 2 * mean);
    }
  }
  CHECK((one == std::vector<float>(60, 1) && five == std::vector<float>(60, 5)));
  CHECK(store->Measure({}, 0).gradient.value() == 0);
  const WeightedGradient part{one.data(), 1};
  CHECK(store->Measure({&part, 1}, 1).tensors.empty());  // SGD needs none
}

}  // namespace
}  // namespace weir
