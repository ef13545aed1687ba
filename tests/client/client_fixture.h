#pragma once

#include <chrono>
#include <cstdlib>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "catch2/catch.hpp"
#include "client/client.h"
#include "common/codec/floats.h"
#include "proto/job_config.pb.h"
#include "tests/client/fake_cluster.h"
#include "tests/client/gate.h"

namespace weir {

inline FakeCluster::Options Async(FakeCluster::Options options) {
  options.sync = false;
  return options;
}

// A fake cluster and what a program needs to join it. Times are short: a lost server is waited for 0.3 s.
struct ClientFixture {
  explicit ClientFixture(FakeCluster::Options cluster_options)
      : model(cluster_options.model), cluster(cluster_options) {
    config.mutable_consistency()->set_mode(cluster_options.sync ? v1::ConsistencyConfig::MODE_SYNC
                                                                : v1::ConsistencyConfig::MODE_ASYNC);
    config.mutable_data()->set_batch_size(static_cast<uint32_t>(cluster_options.batch_size));
    // The largest message, so that tests can count messages.
    config.mutable_wire()->set_chunk_kib(1024);
    config.mutable_cluster()->set_server_wait_seconds(0.3);
    config.mutable_cluster()->set_wait_seconds(20);
    config.mutable_cluster()->set_start_seconds(10);
    options.servers = cluster.addresses();
    options.task = "worker:" + std::to_string(cluster_options.worker);
    options.rank = cluster_options.worker;
    options.train_examples = 1000;
    // The fake job never hears that its examples are done.
    options.hashes_weights = false;
    for (const TensorSpec& tensor : model.tensors) {
      weights.emplace_back(tensor.elements(), -1.0f);
      gradient.emplace_back(tensor.elements());
      float next = 0.5f;
      for (float& value : gradient.back()) value = next++;
    }
  }

  static FakeCluster::Options Small() {
    FakeCluster::Options options;
    options.model.tensors.push_back({"dense_0/weight", {20, 10}, TensorKind::kParameter, {}});
    options.model.tensors.push_back({"dense_0/bias", {10}, TensorKind::kParameter, {}});
    return options;
  }
  // More than 3 MiB on each of 2 shards.
  static FakeCluster::Options Large() {
    FakeCluster::Options options;
    options.model.tensors.push_back({"dense_0/weight", {1300, 1300}, TensorKind::kParameter, {}});
    options.model.tensors.push_back({"dense_0/bias", {1300}, TensorKind::kParameter, {}});
    return options;
  }

  std::unique_ptr<Client> Join() {
    options.job_config = config.SerializeAsString();
    auto client = Client::Join(options, model);
    INFO(client.status());
    REQUIRE(client.ok());
    return *std::move(client);
  }

  std::vector<MutableTensor> Weights() {
    std::vector<MutableTensor> tensors;
    for (size_t i = 0; i < weights.size(); ++i) {
      tensors.push_back({model.tensors[i].name, absl::MakeSpan(weights[i])});
    }
    return tensors;
  }
  std::vector<ConstTensor> Gradient() const {
    std::vector<ConstTensor> tensors;
    for (size_t i = 0; i < gradient.size(); ++i) tensors.push_back({model.tensors[i].name, gradient[i]});
    return tensors;
  }
  // The gradient, rounded to bfloat16 before it is handed over.
  std::vector<ConstTensor> RoundedGradient() {
    std::vector<ConstTensor> tensors;
    rounded.resize(gradient.size());
    for (size_t i = 0; i < gradient.size(); ++i) {
      rounded[i].resize(gradient[i].size());
      ToBfloat16(gradient[i].data(), rounded[i].data(), gradient[i].size());
      tensors.push_back({model.tensors[i].name, {}, rounded[i]});
    }
    return tensors;
  }
  // Whether all weights, on every shard, are those of this version.
  bool WeightsAre(uint64_t version) const {
    int64_t element = 0;
    for (const auto& tensor : weights) {
      for (float value : tensor) {
        if (value != FakeCluster::Weight(version, element++)) return false;
      }
    }
    return true;
  }
  // The shard's part of the gradient.
  std::vector<float> GradientOf(uint32_t shard) const {
    std::vector<float> all, part;
    for (const auto& tensor : gradient) all.insert(all.end(), tensor.begin(), tensor.end());
    const Partition partition(model.elements(), static_cast<uint32_t>(options.servers.size()));
    for (int64_t i = 0; i < partition.shard_blocks(shard); ++i) {
      const auto first = all.begin() + partition.block_start(shard, i);
      part.insert(part.end(), first, first + partition.block_length(shard, i));
    }
    return part;
  }

  Work NextWork(Client& client) {
    const auto work = client.NextWork();
    INFO(work.status());
    REQUIRE(work.ok());
    REQUIRE(work->has_value());
    return **work;
  }
  PullResult Pull(Client& client, uint64_t clock) {
    const auto result = client.Pull(clock, Weights()).Get();
    INFO(result.status());
    REQUIRE(result.ok());
    return *result;
  }
  // Pushes Gradient(), which is applied, as the job's first step if weights are pulled with it.
  void Push(Client& client, const Work& work, const PullResult& base, bool with_pull) {
    if (with_pull) {
      const auto result = client.PushPull(work, base, Gradient(), Weights()).Get();
      INFO(result.status());
      REQUIRE(result.ok());
      CHECK(result->push.applied);
      CHECK(WeightsAre(1));
    } else {
      const auto result = client.Push(work, base, Gradient()).Get();
      INFO(result.status());
      REQUIRE(result.ok());
      CHECK(result->applied);
    }
  }
  // The pushes that this shard has got, in the order of arrival.
  std::vector<FakeCluster::Push> PushesOf(uint32_t shard) const {
    std::vector<FakeCluster::Push> of;
    for (const FakeCluster::Push& push : cluster.pushes()) {
      if (push.shard == shard) of.push_back(push);
    }
    return of;
  }

  // The shard takes the first chunk of its first push, opens `begun`, and waits for `gate`.
  void HoldFirstPush(uint32_t shard, Gate* begun, Gate* gate) {
    cluster.on_push = [=](uint32_t of, size_t nth) -> std::optional<grpc::Status> {
      if (of == shard && nth == 1) {
        begun->Open();
        gate->Wait();
      }
      return std::nullopt;
    };
  }

  const ModelSpec model;
  FakeCluster cluster;
  v1::JobConfig config;
  ClientOptions options;
  std::vector<std::vector<float>> weights, gradient;
  std::vector<std::vector<uint16_t>> rounded;
};

inline std::string TemporaryFolder() {
  const char* folder = std::getenv("TEST_TMPDIR");
  return folder == nullptr ? "/tmp" : folder;
}

}  // namespace weir
