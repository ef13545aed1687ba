#pragma once

#include <algorithm>
#include <deque>
#include <functional>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "catch2/catch.hpp"
#include "common/codec/floats.h"
#include "common/config/job_config.h"
#include "common/optimizer/kernels.h"
#include "common/optimizer/optimizer.h"
#include "tests/worker/digits.h"
#include "tests/worker/scripted_client.h"
#include "worker/compute/compute_backend.h"
#include "worker/data/dataset.h"
#include "worker/dataset_gradients.h"
#include "worker/local_rule.h"
#include "worker/replicas.h"
#include "worker/trainer.h"

// A training loop on any backends, with a client without servers.
namespace weir {

using Calls = std::vector<std::string>;

inline v1::JobConfig Config(const std::vector<std::string>& overrides) {
  auto config = ParseJobConfig(R"({
    "model": {"layers": [{"type": "flatten"}, {"type": "dense", "units": 12}, {"type": "relu"},
                         {"type": "dense", "units": 10}]},
    "data": {"format": "digits", "batch_size": 8}, "cluster": {"workers": 2}})",
                               "test", overrides);
  INFO(config.status());
  REQUIRE(config.ok());
  return *config;
}

inline const Dataset& Train() { return Digits().train; }

inline std::deque<Work> Clocks(uint64_t n, uint64_t examples = 8) {
  std::deque<Work> work;
  for (uint64_t clock = 0; clock < n; ++clock) {
    work.push_back({clock, 0, clock, clock * examples, examples, true});
  }
  return work;
}

inline float Weight(uint64_t version, size_t tensor, size_t element) {
  const size_t bits = (version * 131 + tensor * 31 + element * 7) % 41;
  return 0.01f * (static_cast<float>(bits) - 20);
}

inline PullResult Version(uint64_t version) {
  PullResult result;
  result.versions = {version};
  result.incarnations = {1};
  return result;
}

inline void Write(const ScriptedClient::PullCall& pull, uint64_t version, size_t tensor) {
  const absl::Span<float> values = pull.tensors[tensor].values;
  for (size_t i = 0; i < values.size(); ++i) values[i] = Weight(version, tensor, i);
}

// Brings the tensors one by one, on a thread of its own, not in forward's order, with wrong values until they
// arrive.
inline void BringInTurns(ScriptedClient* client, const ScriptedClient::PullCall& pull, uint64_t version) {
  client->threads.emplace_back([pull, version] {
    for (const MutableTensor& tensor : pull.tensors)
      std::fill(tensor.values.begin(), tensor.values.end(), 1e9f);
    for (const size_t t : {1, 0, 3, 2}) {
      Write(pull, version, t);
      pull.on_weights(t);
    }
    pull.end(Version(version));
  });
}

// Brings all tensors at once.
inline void Bring(const ScriptedClient::PullCall& pull, uint64_t version) {
  for (size_t t = 0; t < pull.tensors.size(); ++t) {
    Write(pull, version, t);
    if (pull.on_weights) pull.on_weights(t);
  }
  pull.end(Version(version));
}

// An optimizer on a whole model, with a constant rate.
class SerialRule {
 public:
  SerialRule(const v1::OptimizerConfig& config, const ModelSpec& spec)
      : spec_(spec),
        rate_(config.learning_rate()),
        settings_(*ResolveGroups(config, spec)),
        optimizer_(*Optimizer::Create(config, **KernelsFor(KernelLevel::kPlain))),
        slots_(optimizer_.slots().size(), std::vector<float>(static_cast<size_t>(spec.elements()))) {}

  void Step(absl::Span<const float> gradient, absl::Span<float> weights) {
    ++t_;
    for (size_t tensor = 0; tensor < spec_.tensors.size(); ++tensor) {
      if (settings_[tensor].frozen) continue;
      const auto first = static_cast<size_t>(spec_.offset(tensor));
      ApplyArgs args;
      args.n = static_cast<size_t>(spec_.tensors[tensor].elements());
      args.weights_in = args.weights_out = &weights[first];
      args.gradient = &gradient[first];
      for (size_t slot = 0; slot < slots_.size(); ++slot) {
        args.slots_in[slot] = args.slots_out[slot] = &slots_[slot][first];
      }
      args.learning_rate = rate_ * settings_[tensor].learning_rate_factor;
      args.weight_decay = settings_[tensor].weight_decay;
      args.l2 = settings_[tensor].l2;
      args.clip_weights = settings_[tensor].clip_weights;
      args.t = t_;
      REQUIRE(optimizer_.Apply(args));
    }
  }

 private:
  const ModelSpec& spec_;
  const double rate_;
  const std::vector<TensorSettings> settings_;
  const Optimizer optimizer_;
  std::vector<std::vector<float>> slots_;
  uint64_t t_ = 0;
};

// Makes the backends that a job computes on.
using Backends = std::function<std::vector<std::unique_ptr<ComputeBackend>>()>;
inline Backends OnCpu(size_t replicas) {
  return [replicas] {
    std::vector<std::unique_ptr<ComputeBackend>> backends;
    while (backends.size() < replicas) backends.push_back(*MakeComputeBackend({"cpu"}));
    return backends;
  };
}

// A training loop with its client. By default pulls bring the requested version at once.
struct Job {
  explicit Job(const std::vector<std::string>& overrides, std::deque<Work> work, Backends backends = OnCpu(1))
      : config(Config(overrides)),
        backends(std::move(backends)),
        replicas(*Replicas::On(config, Train(), this->backends())),
        client(replicas->model().spec(), std::move(work)) {
    client.on_pull = [](ScriptedClient::PullCall pull) { Bring(pull, pull.clock); };
  }
  absl::Status Run() {
    const auto gradients = MakeGradients(config, Train(), replicas.get(), client);
    REQUIRE(gradients.ok());
    return Trainer(config, gradients->get(), &client).Run();
  }

  // The gradient that the push of this work has to bring, computed from the weights of a version, in float32.
  std::vector<float> Gradient(const Work& work, uint64_t version) const {
    v1::JobConfig unrounded = config;
    unrounded.clear_wire();
    const auto reference = *Replicas::On(unrounded, Train(), backends());
    Model& model = reference->model();
    const ModelSpec& spec = model.spec();
    const auto compute = [&](uint64_t batch, uint64_t first_example, uint64_t examples) {
      std::vector<int32_t> indexes(examples);
      ExampleOrder(static_cast<int32_t>(Train().size()), config.seed())
          .Fill(static_cast<int64_t>(first_example), absl::MakeSpan(indexes));
      REQUIRE(
          reference->ComputeGradient(Train(), indexes, config.train().micro_batches(), config.seed(), batch)
              .ok());
    };
    for (size_t t = 0; t < spec.tensors.size(); ++t) {
      for (int64_t i = 0; i < spec.tensors[t].elements(); ++i) {
        model.weights()[static_cast<size_t>(spec.offset(t) + i)] = Weight(version, t, static_cast<size_t>(i));
      }
    }
    if (!TakesLocalSteps(config)) {
      compute(work.batch, work.first_example, work.examples);
      return {model.gradients().begin(), model.gradients().end()};
    }
    std::vector<float> base(model.weights().begin(), model.weights().end());
    const uint64_t batch_size = config.data().batch_size();
    SerialRule rule(config.local().inner(), spec);
    for (uint64_t done = 0, step = 0; done < work.examples; done += batch_size, ++step) {
      const uint64_t batch = work.batch * config.local().steps() + step;
      compute(batch, work.first_example + done, std::min(batch_size, work.examples - done));
      rule.Step(model.gradients(), model.weights());
    }
    for (size_t i = 0; i < base.size(); ++i) base[i] -= model.weights()[i];
    return base;
  }
  // Each push had the expected gradient, from the weights of its clock; rounded if the device rounds.
  void CheckPushes(size_t count, bool rounded = false) const {
    const auto pushes = client.pushes();
    REQUIRE(pushes.size() == count);
    for (const ScriptedClient::PushCall& push : pushes) {
      CAPTURE(push.work.clock, push.work.part);
      CHECK(push.failure.ok());
      CHECK(push.base.versions == std::vector<uint64_t>{push.work.clock});
      const std::vector<float> gradient = Gradient(push.work, push.work.clock);
      if (rounded) {
        std::vector<uint16_t> bits(gradient.size());
        ToBfloat16(gradient.data(), bits.data(), gradient.size());
        CHECK(push.gradient.empty());
        CHECK(push.bfloat16 == bits);
      } else {
        CHECK(push.gradient == gradient);
        CHECK(push.bfloat16.empty());
      }
    }
  }

  const v1::JobConfig config;
  const Backends backends;
  const std::unique_ptr<Replicas> replicas;
  ScriptedClient client;
};

}  // namespace weir
