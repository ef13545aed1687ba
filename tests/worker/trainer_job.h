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
#include "tests/worker/digits.h"
#include "tests/worker/scripted_client.h"
#include "worker/compute/compute_backend.h"
#include "worker/data/dataset.h"
#include "worker/dataset_gradients.h"
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

inline std::deque<Work> Clocks(uint64_t n) {
  std::deque<Work> work;
  for (uint64_t clock = 0; clock < n; ++clock) work.push_back({clock, 0, clock, clock * 8, 8, true});
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
    DatasetGradients gradients(config, Train(), replicas.get());
    return Trainer(config, &gradients, &client).Run();
  }

  // The gradient that the push of this work has to bring, computed from the weights of a version, in float32.
  std::vector<float> Gradient(const Work& work, uint64_t version) const {
    v1::JobConfig unrounded = config;
    unrounded.clear_wire();
    const auto reference = *Replicas::On(unrounded, Train(), backends());
    Model& model = reference->model();
    const ModelSpec& spec = model.spec();
    for (size_t t = 0; t < spec.tensors.size(); ++t) {
      for (int64_t i = 0; i < spec.tensors[t].elements(); ++i) {
        model.weights()[static_cast<size_t>(spec.offset(t) + i)] = Weight(version, t, static_cast<size_t>(i));
      }
    }
    std::vector<int32_t> indexes(work.examples);
    ExampleOrder(static_cast<int32_t>(Train().size()), config.seed())
        .Fill(static_cast<int64_t>(work.first_example), absl::MakeSpan(indexes));
    REQUIRE(reference
                ->ComputeGradient(Train(), indexes, config.train().micro_batches(), config.seed(), work.batch)
                .ok());
    return {model.gradients().begin(), model.gradients().end()};
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
