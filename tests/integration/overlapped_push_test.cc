// Gradients that are checked and sent while they are computed, against real servers. A bad gradient leaves no
// trace on any shard, however far it got. A good gradient that comes tensor by tensor takes effect once, and
// weights that are reported early are the final ones.
#include <algorithm>
#include <limits>
#include <string>
#include <thread>
#include <vector>

#include "absl/strings/str_cat.h"
#include "catch2/catch.hpp"
#include "client/types.h"
#include "common/base/random.h"
#include "common/model/partition.h"
#include "local/in_process_cluster.h"
#include "tests/integration/counting_job.h"

namespace weir {
namespace {

constexpr uint32_t kServers = 2;
constexpr uint64_t kSteps = 12;

v1::JobConfig Job(const std::string& mode, const std::string& transport, const std::string& apply) {
  std::vector<std::string> overrides = {
      "consistency.mode=" + mode, "wire.transport=" + transport,
      "server.apply=" + apply,    "wire.chunk_kib=256",
      "cluster.workers=1",        "consistency.on_nonfinite=reject",
      "cluster.wait_seconds=20",  absl::StrCat("train={\"examples\": ", kSteps, "}")};
  if (mode == "bounded") overrides.push_back("consistency.staleness=1");
  return CountingJob(overrides);
}

struct Program {
  explicit Program(const v1::JobConfig& config) {
    InProcessCluster::Options options;
    options.config = config;
    options.servers = kServers;
    auto started = InProcessCluster::Start(options);
    INFO(started.status());
    REQUIRE(started.ok());
    cluster = *std::move(started);
    ClientOptions client_options;
    client_options.servers = cluster->addresses();
    client_options.job_config = config.SerializeAsString();
    client_options.train_examples = 1000;
    auto joined = Client::Join(client_options, model);
    INFO(joined.status());
    REQUIRE(joined.ok());
    client = *std::move(joined);
  }

  std::vector<MutableTensor> Weights() { return TensorsOf(model, absl::MakeSpan(weights)); }
  std::vector<ConstTensor> Gradient() const { return TensorsOf(model, absl::MakeConstSpan(gradient)); }
  // The number of weights, of all tensors or of one, that are not `count`.
  int64_t Wrong(float count) const {
    return static_cast<int64_t>(weights.size()) - std::count(weights.begin(), weights.end(), count);
  }
  int64_t Wrong(size_t tensor, float count) const {
    const auto first = weights.begin() + model.offset(tensor);
    const int64_t n = model.tensors[tensor].elements();
    return n - std::count(first, first + n, count);
  }

  const ModelSpec model = CountingModel();
  std::vector<float> weights = std::vector<float>(model.elements(), -1.0f);
  std::vector<float> gradient = std::vector<float>(model.elements(), 1.0f);
  std::unique_ptr<InProcessCluster> cluster;
  std::unique_ptr<Client> client;
};

void CheckJob(const std::string& mode, const std::string& apply) {
  const std::string transport = GENERATE("tcp", "unix", "shared_memory");
  INFO(mode << ", " << apply << ", " << transport);
  Program p(Job(mode, transport, apply));
  PullResult base;
  // Updates that were not refused.
  uint64_t good_steps = 0;
  for (uint64_t step = 0; step < kSteps; ++step) {
    const auto work = p.client->NextWork();
    INFO(work.status());
    REQUIRE(work.ok());
    REQUIRE(work->has_value());
    if (step == 0) {
      const auto pull = p.client->Pull((*work)->clock, p.Weights()).Get();
      REQUIRE(pull.ok());
      base = *pull;
      CHECK(p.Wrong(0) == 0);
    }

    if (step % 2 == 0) {
      // Bad at some place: near the end all but the last chunks have been applied when the value is found.
      const size_t bad = step < 4 ? p.gradient.size() - 1 - step / 2 * Partition::kMaxBlockSize
                                  : Philox(RandomKey(1, "places"), step, 0)[0] % p.gradient.size();
      p.gradient[bad] = std::numeric_limits<float>::quiet_NaN();
      const auto refused = p.client->PushPull(**work, base, p.Gradient(), p.Weights()).Get();
      p.gradient[bad] = 1;
      INFO(refused.status());
      REQUIRE(refused.ok());
      CHECK_FALSE(refused->push.applied);
      CHECK_THAT(refused->push.reason, Catch::Contains("REFUSED") && Catch::Contains("is NaN at clock "));
      base = refused->pull;
      CHECK(base.versions == std::vector<uint64_t>(kServers, mode == "sync" ? step + 1 : good_steps));
      CHECK(p.Wrong(static_cast<float>(good_steps)) == 0);
      continue;
    }
    ++good_steps;

    // A push that is given up in the middle.
    const auto gate = std::make_shared<GradientGate>();
    const auto given_up = p.client->PushPull(**work, base, p.Gradient(), p.Weights(), gate);
    gate->Ready(0);
    gate->Fail(absl::InternalError("the device is gone"));
    CHECK(given_up.Get().status() == absl::InternalError("the device is gone"));

    // A good push, whose gradient another thread computes.
    const auto good_gate = std::make_shared<GradientGate>();
    std::vector<int64_t> wrong(p.model.tensors.size(), -1);
    const auto good = p.client->PushPull(
        **work, base, p.Gradient(), p.Weights(), good_gate,
        [&](size_t tensor) { wrong[tensor] = p.Wrong(tensor, static_cast<float>(good_steps)); });
    std::thread backward([&] {
      for (size_t tensor = p.model.tensors.size(); tensor-- > 0;) good_gate->Ready(tensor);
    });
    backward.join();
    const auto& result = good.Get();
    INFO(result.status());
    REQUIRE(result.ok());
    INFO(result->push.reason);
    CHECK(result->push.applied);
    CHECK(result->push.staleness == 0);
    base = result->pull;
    CHECK(base.versions == std::vector<uint64_t>(kServers, mode == "sync" ? step + 1 : good_steps));
    CHECK(p.Wrong(static_cast<float>(good_steps)) == 0);
    CHECK(wrong == std::vector<int64_t>(p.model.tensors.size(), 0));
  }
  const auto end = p.client->NextWork();
  REQUIRE(end.ok());
  CHECK_FALSE(end->has_value());
  CHECK(p.client->Leave().ok());
  CHECK(p.cluster->Wait().ok());
}

TEST_CASE("pushes that are refused on their way leave no trace: sync") { CheckJob("sync", "streamed"); }
TEST_CASE("pushes that are refused on their way leave no trace: bounded, streamed") {
  CheckJob("bounded", "streamed");
}
TEST_CASE("pushes that are refused on their way leave no trace: bounded, staged") {
  CheckJob("bounded", "staged");
}
TEST_CASE("pushes that are refused on their way leave no trace: async, streamed") {
  CheckJob("async", "streamed");
}
TEST_CASE("pushes that are refused on their way leave no trace: async, staged") {
  CheckJob("async", "staged");
}

}  // namespace
}  // namespace weir
