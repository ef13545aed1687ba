// The training loop with the CUDA code, on an emulated device, whose copies run in the worst allowed order.

#include "catch2/catch.hpp"
#include "tests/worker/compute/cuda_emulation/emulation.h"
#include "tests/worker/compute/queued_backend.h"
#include "tests/worker/trainer_job.h"

namespace weir {
namespace {

Backends Emulated(uint64_t seed, size_t replicas) {
  return [seed, replicas] {
    cuda_emulation::Machine machine;
    machine.seed = seed;
    cuda_emulation::SetMachine(machine);
    std::vector<std::unique_ptr<ComputeBackend>> backends;
    while (backends.size() < replicas) {
      backends.push_back(*cuda_emulation::MakeBackend(0, Precision::kFloat32, 1 << 20));
    }
    return backends;
  };
}

// The expected bits are the device's own: those of passes with all weights present and nothing on the way.
TEST_CASE("Weights and gradients that travel while the device computes give the same bits") {
  const uint64_t seed = GENERATE(1, 2, 3);
  const std::string micro_batches = GENERATE("train.micro_batches=1", "train.micro_batches=3");
  Job job({micro_batches}, Clocks(4), Emulated(seed, 1));
  SECTION("weights tensor by tensor") {
    job.client.on_pull = [&](const ScriptedClient::PullCall& pull) {
      BringInTurns(&job.client, pull, pull.clock);
    };
  }
  SECTION("all at once") {}
  REQUIRE(job.Run().ok());
  job.CheckPushes(4);
  for (const auto& push : job.client.pushes()) CHECK(push.ready == std::vector<size_t>{3, 2, 1, 0});
}

TEST_CASE("So do parts of a step, whose weights are on the device already, and prefetched weights") {
  const uint64_t seed = GENERATE(1, 2, 3);
  SECTION("parts") {
    Job job({"consistency.parts=3"},
            {{0, 0, 0, 0, 8, false}, {0, 1, 1, 8, 8, true}, {0, 2, 2, 16, 8, true}, {1, 0, 3, 24, 8, true}},
            Emulated(seed, 1));
    REQUIRE(job.Run().ok());
    job.CheckPushes(4);
  }
  SECTION("prefetch") {
    const std::string micro_batches = GENERATE("train.micro_batches=1", "train.micro_batches=3");
    std::deque<Work> work = Clocks(6);
    // The other workers were faster: weights on their way to the device are of no use.
    const bool skips = GENERATE(false, true);
    if (skips) work.erase(work.begin() + 2);
    Job job(
        {"consistency.mode=bounded", "consistency.staleness=1", "consistency.prefetch=true", micro_batches},
        work, Emulated(seed, 1));
    SECTION("at once") {}
    SECTION("some time during the step, or after it") {
      job.client.on_pull = [&](ScriptedClient::PullCall pull) {
        job.client.threads.emplace_back([pull] { Bring(pull, pull.clock); });
      };
    }
    REQUIRE(job.Run().ok());
    job.CheckPushes(work.size());
  }
}

TEST_CASE("Local steps on a device, with weights that travel meanwhile") {
  const uint64_t seed = GENERATE(1, 2, 3);
  const std::string wire = GENERATE("wire.dtype=f32", "wire.push_dtype=bf16");
  const std::string mode =
      GENERATE(R"({"parts": 2})", R"({"mode": "bounded", "staleness": 1, "prefetch": true})");
  const bool prefetch = mode.find("prefetch") != std::string::npos;
  std::deque<Work> work = Clocks(4, 20);
  // Two parts from the same weights, after local steps from them.
  if (!prefetch) work.insert(work.begin() + 1, {0, 1, 9, 180, 20, true});
  const size_t pushes = work.size();
  // The emulated device is one that one thread uses at a time.
  const auto two = [] {
    std::vector<std::unique_ptr<ComputeBackend>> backends;
    while (backends.size() < 2) backends.push_back(MakeQueuedBackend());
    return backends;
  };
  const bool one = GENERATE(true, false);
  Job job({"consistency=" + mode, wire, R"(local={"steps": 3, "inner": {"type": "adam"}})"}, std::move(work),
          one ? Emulated(seed, 1) : Backends(two));
  SECTION("weights tensor by tensor") {
    if (!prefetch) {
      job.client.on_pull = [&](const ScriptedClient::PullCall& pull) {
        BringInTurns(&job.client, pull, pull.clock);
      };
    }
  }
  SECTION("all at once, some time") {
    job.client.on_pull = [&](ScriptedClient::PullCall pull) {
      job.client.threads.emplace_back([pull] { Bring(pull, pull.clock); });
    };
  }
  REQUIRE(job.Run().ok());
  job.CheckPushes(pushes);
}

TEST_CASE(
    "Where gradients travel as bfloat16 they leave the device as such, layer by layer, after the last sum") {
  const uint64_t seed = GENERATE(1, 2, 3);
  const std::string micro_batches = GENERATE("train.micro_batches=1", "train.micro_batches=3");
  const std::string wire = GENERATE("wire.dtype=bf16", "wire.push_dtype=bf16");
  Job job({micro_batches, wire}, Clocks(4), Emulated(seed, 1));
  REQUIRE(job.Run().ok());
  job.CheckPushes(4, /*rounded=*/true);
  for (const auto& push : job.client.pushes()) CHECK(push.ready == std::vector<size_t>{3, 2, 1, 0});
}

TEST_CASE("Gradients that the host is to add up or to clip leave the device in float32") {
  SECTION("two replicas") {
    // Not on the emulated device, which one thread uses at a time.
    const auto queued = [] {
      std::vector<std::unique_ptr<ComputeBackend>> backends;
      while (backends.size() < 2) backends.push_back(MakeQueuedBackend());
      return backends;
    };
    Job job({"wire.dtype=bf16"}, Clocks(3), queued);
    REQUIRE(job.Run().ok());
    job.CheckPushes(3);
  }
  SECTION("clipping, which leaves these as they are") {
    Job job({"wire.dtype=bf16", "train.clip_norm=1000"}, Clocks(3), Emulated(1, 1));
    REQUIRE(job.Run().ok());
    job.CheckPushes(3);
  }
  SECTION("weights alone are rounded") {
    Job job({"wire.pull_dtype=bf16"}, Clocks(3), Emulated(1, 1));
    REQUIRE(job.Run().ok());
    job.CheckPushes(3);
  }
}

TEST_CASE("A step is begun anew when its weights are lost under way") {
  Job job({}, Clocks(2), Emulated(GENERATE(1, 2, 3), 1));
  int pulls = 0;
  job.client.on_pull = [&](ScriptedClient::PullCall pull) {
    if (++pulls > 3) return Bring(pull, pull.clock);
    for (const size_t t : {0, 1}) {
      Write(pull, 77, t);
      pull.on_weights(t);
    }
    pull.end(absl::DataLossError("cut short"));
  };
  REQUIRE(job.Run().ok());
  job.CheckPushes(2);
}

}  // namespace
}  // namespace weir
