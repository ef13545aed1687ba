// Gradients that servers may read where the worker made them (Client::NewGradient): a value that is not
// finite is found, by either side, before any of the gradient takes effect on any shard.
#include <cmath>
#include <limits>
#include <memory>
#include <string>
#include <vector>

#include "catch2/catch.hpp"
#include "common/protocol/job_failure.h"
#include "local/in_process_cluster.h"
#include "tests/integration/counting_job.h"

namespace weir {
namespace {

using Catch::Contains;

struct Job {
  Job(uint32_t servers, const std::string& transport, const std::string& on_nonfinite) {
    InProcessCluster::Options options;
    options.config = CountingJob({"wire.transport=" + transport, "consistency.on_nonfinite=" + on_nonfinite});
    options.config.mutable_cluster()->set_workers(1);
    options.servers = servers;
    options.workers = 1;
    auto started = InProcessCluster::Start(options);
    INFO(started.status());
    REQUIRE(started.ok());
    cluster = *std::move(started);
    auto joined = CountingClient::Join(options.config, cluster->addresses(), 0);
    INFO(joined.status());
    REQUIRE(joined.ok());
    client = *std::move(joined);
  }
  void Step() {
    const auto stepped = client->StepInPlace();
    INFO(stepped.status());
    REQUIRE(stepped.ok());
    CHECK(client->TornElementsOfView() == 0);
  }

  std::unique_ptr<InProcessCluster> cluster;
  std::unique_ptr<CountingClient> client;
};

// An element of tensor 'a', in its last chunk: other chunks have arrived before.
constexpr int64_t kBad = 1030 * 1021 + 7;
constexpr char kWhere[] = "a[1051637]";

TEST_CASE("a gradient in place that is not finite is refused, and no shard applies any of it") {
  const uint32_t servers = GENERATE(1, 2);
  const std::string transport = GENERATE("tcp", "unix", "shared_memory");
  Job job(servers, transport, "reject");
  job.Step();
  CHECK(job.client->last_push().applied);
  for (const float bad : {std::numeric_limits<float>::quiet_NaN(), std::numeric_limits<float>::infinity()}) {
    const std::vector<uint64_t> versions = job.client->versions();
    job.client->gradient_in_place()[kBad] = bad;
    job.Step();
    CHECK_FALSE(job.client->last_push().applied);
    CHECK_THAT(job.client->last_push().reason,
               Contains(kWhere + std::string(std::isnan(bad) ? " is NaN" : " is Inf")));
    CHECK(job.client->versions() == versions);
    job.client->gradient_in_place()[kBad] = 1;
    job.Step();
    CHECK(job.client->last_push().applied);
  }
}

TEST_CASE("a gradient in place that is not finite ends the job that does not go on without") {
  const uint32_t servers = GENERATE(1, 2);
  const std::string transport = GENERATE("tcp", "shared_memory");
  Job job(servers, transport, "stop");
  job.Step();
  job.client->gradient_in_place()[kBad] = -std::numeric_limits<float>::infinity();
  const auto stepped = job.client->StepInPlace();
  CHECK(stepped.status().code() == absl::StatusCode::kInternal);
  CHECK(KindOf(stepped.status()) == v1::FAILURE_DIVERGED);
  CHECK_THAT(std::string(stepped.status().message()), Contains(kWhere + std::string(" is -Inf")));
}

}  // namespace
}  // namespace weir
