// Whole jobs with the CUDA code, on an emulated device, with servers in this process.

#include <vector>

#include "catch2/catch.hpp"
#include "client/client.h"
#include "local/in_process_cluster.h"
#include "tests/worker/compute/cuda_emulation/emulation.h"
#include "tests/worker/trainer_job.h"
#include "worker/dataset_gradients.h"
#include "worker/replicas.h"
#include "worker/trainer.h"

namespace weir {
namespace {

std::unique_ptr<Replicas> Emulated(const v1::JobConfig& config, uint64_t seed) {
  cuda_emulation::Machine machine;
  machine.seed = seed;
  cuda_emulation::SetMachine(machine);
  std::vector<std::unique_ptr<ComputeBackend>> backends;
  backends.push_back(*cuda_emulation::MakeBackend(0, Precision::kFloat32, 1 << 20));
  return *Replicas::On(config, Train(), std::move(backends));
}

// The weights at the end of a job of one worker that computes with these replicas.
std::vector<float> Trained(const v1::JobConfig& config, Replicas* replicas) {
  InProcessCluster::Options cluster_options;
  cluster_options.config = config;
  cluster_options.servers = 2;
  const auto cluster = *InProcessCluster::Start(std::move(cluster_options));
  ClientOptions options;
  options.servers = cluster->addresses();
  options.job_config = config.SerializeAsString();
  options.train_examples = static_cast<uint64_t>(Train().size());
  const ModelSpec& spec = replicas->model().spec();
  const auto client = *Client::Join(options, spec);
  DatasetGradients gradients(config, Train(), replicas);
  const absl::Status run = Trainer(config, &gradients, client.get()).Run();
  INFO(run);
  REQUIRE(run.ok());
  std::vector<float> weights(static_cast<size_t>(spec.elements()));
  REQUIRE(client->PullSnapshot(TensorsOf(spec, absl::MakeSpan(weights))).Get().ok());
  REQUIRE(client->Leave().ok());
  return weights;
}

v1::JobConfig JobOf(const std::vector<std::string>& overrides) {
  std::vector<std::string> all = {"cluster.workers=1", "train.examples=64", "optimizer.learning_rate=0.05"};
  all.insert(all.end(), overrides.begin(), overrides.end());
  return Config(all);
}

TEST_CASE("Gradients rounded on the device train the same weights, bit for bit, as those the client rounds") {
  const std::string transport = GENERATE("wire.transport=tcp", "wire.transport=auto");
  const std::string micro_batches = GENERATE("train.micro_batches=1", "train.micro_batches=3");
  const std::string dtype = GENERATE("wire.dtype=bf16", "wire.push_dtype=bf16");
  const v1::JobConfig config = JobOf({transport, micro_batches, dtype}), whole = JobOf({micro_batches});
  const auto on_device = Emulated(config, 1), on_host = Emulated(whole, 2);
  REQUIRE(on_device->model().rounds_gradients());
  REQUIRE_FALSE(on_host->model().rounds_gradients());
  const std::vector<float> weights = Trained(config, on_device.get());
  CHECK((weights == Trained(config, on_host.get())));
  // The setting makes a difference.
  CHECK((weights != Trained(whole, on_host.get())));
}

TEST_CASE("A job whose pushes are float32 takes no gradients that a device has rounded") {
  const auto rounding = Emulated(JobOf({"wire.dtype=bf16"}), 1);
  const v1::JobConfig config = JobOf({});
  InProcessCluster::Options cluster_options;
  cluster_options.config = config;
  const auto cluster = *InProcessCluster::Start(std::move(cluster_options));
  ClientOptions options;
  options.servers = cluster->addresses();
  options.job_config = config.SerializeAsString();
  options.train_examples = static_cast<uint64_t>(Train().size());
  const auto client = *Client::Join(options, rounding->model().spec());
  DatasetGradients gradients(config, Train(), rounding.get());
  const absl::Status run = Trainer(config, &gradients, client.get()).Run();
  CHECK(run.code() == absl::StatusCode::kInvalidArgument);
}

}  // namespace
}  // namespace weir
