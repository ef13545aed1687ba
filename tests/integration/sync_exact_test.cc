// A sync run gives the same bits for every cluster and whatever happens to its workers; the bits are those of
// a plain serial loop.
#include <algorithm>
#include <cmath>
#include <cstdio>
#include <map>
#include <string>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "catch2/catch.hpp"
#include "common/optimizer/kernels.h"
#include "tests/integration/serial_reference.h"
#include "tests/integration/sync_run.h"
#include "tests/skip.h"

namespace weir {
namespace {

using Overrides = std::vector<std::string>;

// Momentum with every setting by tensor, and a rate that changes every step.
const Overrides kMomentum = {
    "optimizer.type=momentum",
    "optimizer.learning_rate=0.05",
    "optimizer.weight_decay=0.001",
    R"(optimizer.groups=[{"match":"hidden/bias","frozen":true},{"match":"*/bias","weight_decay":0},{"match":"out/*","learning_rate_factor":0.5}])",
    R"(optimizer.schedule={"type":"cosine","warmup_steps":7})",
};

Overrides Plus(Overrides base, const Overrides& more) {
  base.insert(base.end(), more.begin(), more.end());
  return base;
}

SerialRun Reference(const v1::JobConfig& config) {
  const auto run = TrainSerially(config, Digits().train);
  INFO(run.status().ToString());
  REQUIRE(run.ok());
  return *run;
}

template <typename Workers>
void CheckBits(const SerialRun& expected, const v1::JobConfig& config, uint32_t servers,
               const Workers& workers, int idlers = 0) {
  const auto run = RunInProcess(config, servers, workers);
  INFO(run.status().ToString());
  REQUIRE(run.ok());
  CHECK(run->steps == expected.steps);
  CHECK(run->weights_sha256 == expected.weights_sha256);
  // Every worker computed something, late ones included.
  CHECK(std::count(run->work.begin(), run->work.end(), 0) <= idlers);
}

TEST_CASE("any number of servers and workers, adam", "[transports]") {
  const v1::JobConfig config = DigitsJob({});
  const SerialRun expected = Reference(config);
  CHECK(expected.steps == 51);
  for (uint32_t servers : {1, 2, 3, 4}) {
    for (uint32_t workers : {1, 2, 4}) {
      INFO(servers << " servers, " << workers << " workers");
      CheckBits(expected, config, servers, workers);
    }
  }
}

TEST_CASE("any number of servers and workers, momentum with groups and a schedule", "[transports]") {
  const v1::JobConfig config = DigitsJob(kMomentum);
  const SerialRun expected = Reference(config);
  const std::vector<std::pair<uint32_t, uint32_t>> clusters = {{1, 4}, {2, 2}, {3, 1}, {4, 4}, {3, 3}};
  for (const auto& [servers, workers] : clusters) {
    INFO(servers << " servers, " << workers << " workers");
    CheckBits(expected, config, servers, workers);
  }
}

TEST_CASE("other optimizers") {
  for (const char* type : {"sgd", "nesterov", "adagrad", "rmsprop", "adamw", "lion"}) {
    INFO(type);
    const v1::JobConfig config = DigitsJob(
        {absl::StrCat("optimizer.type=", type), "optimizer.weight_decay=0.01", "train.examples=413"});
    CheckBits(Reference(config), config, 2, 2);
  }
}

TEST_CASE("coupled decay by tensor, AMSGrad, gradients clipped by value, a cycle, and a length in steps") {
  const v1::JobConfig config =
      DigitsJob({"optimizer.amsgrad=true", "optimizer.l2=0.01",
                 R"(optimizer.groups=[{"match":"out/weight","l2":0.1},{"match":"*/bias","l2":0}])",
                 "train.clip_value=0.003", "train.examples=null", "train.steps=13",
                 R"(optimizer.schedule={"type":"one_cycle"})"});
  const SerialRun expected = Reference(config);
  CHECK(expected.steps == 13);
  CheckBits(expected, config, 2, 3);
}

TEST_CASE("the mean is clipped, and LAMB scales by tensor: any number of servers and workers") {
  const Overrides mean = {"train.clip=mean", "train.clip_norm=0.2", "train.examples=413"};
  const Overrides lamb = Plus(kMomentum, {"optimizer.type=lamb", "optimizer.learning_rate=0.01"});
  std::vector<std::string> hashes;
  for (const Overrides& overrides :
       {mean, Plus(lamb, {"train.examples=413"}), Plus(lamb, Plus(mean, {"optimizer.l2=0.01"}))}) {
    const v1::JobConfig config = DigitsJob(overrides);
    const SerialRun expected = Reference(config);
    hashes.push_back(expected.weights_sha256);
    for (uint32_t servers : {1, 2, 3, 4}) {
      INFO(servers << " servers, " << overrides.size() << " overrides");
      CheckBits(expected, config, servers, servers % 3 + 1);
    }
  }
  hashes.push_back(
      Reference(DigitsJob({"train.clip_norm=0.2", "train.examples=413"})).weights_sha256);  // of pushes
  hashes.push_back(Reference(DigitsJob({"train.clip_norm=0", "train.examples=413"})).weights_sha256);
  std::sort(hashes.begin(), hashes.end());
  CHECK(std::adjacent_find(hashes.begin(), hashes.end()) == hashes.end());
}

TEST_CASE("clipped weights, with a range by tensor") {
  const v1::JobConfig config = DigitsJob(
      {"optimizer.type=momentum", "optimizer.learning_rate=0.05", "optimizer.clip_weights=0.1",
       R"(optimizer.groups=[{"match":"out/weight","clip_weights":0.2},{"match":"*/bias","clip_weights":0}])",
       "train.examples=413"});
  const SerialRun expected = Reference(config);
  const auto beyond = [&](float limit) {
    return std::count_if(expected.weights.begin(), expected.weights.end(),
                         [limit](float weight) { return std::abs(weight) >= limit; });
  };
  CHECK(beyond(0.1f) > 100);
  CHECK(beyond(0.2f) > 0);
  for (uint32_t servers : {1, 3}) CheckBits(expected, config, servers, 2);
}

TEST_CASE("a convolutional model") {
  const v1::JobConfig config = DigitsJob({
      R"(model.layers=[{"type":"conv2d","filters":6,"kernel":3,"padding":1},{"type":"relu"},{"type":"max_pool","kernel":2},{"type":"flatten"},{"type":"dropout","rate":0.3},{"type":"dense","units":10}])",
      "train.examples=413",
  });
  CheckBits(Reference(config), config, 3, 4);
}

TEST_CASE("numbers of parts that the workers do not divide, and one part") {
  for (uint32_t parts : {1, 3, 7}) {
    INFO(parts << " parts");
    const v1::JobConfig config = DigitsJob({absl::StrCat("consistency.parts=", parts), "train.examples=413"});
    CheckBits(Reference(config), config, 2, 2, parts == 1 ? 1 : 0);
  }
}

// Rounds of 10 steps by Adam with all that varies by tensor and time, of which Nesterov's rule makes steps.
const Overrides kLocal = {
    "optimizer.type=nesterov",
    "optimizer.learning_rate=0.7",
    "consistency.parts=6",
    R"(local={"steps":10,"inner":{"type":"adam","learning_rate":0.01,"weight_decay":0.01,"groups":[{"match":"hidden/bias","frozen":true},{"match":"*/bias","weight_decay":0,"learning_rate_factor":2}],"schedule":{"type":"cosine","warmup_steps":3}}})",
};

TEST_CASE("local steps: any number of servers and workers") {
  const v1::JobConfig config = DigitsJob(kLocal);
  const SerialRun expected = Reference(config);
  CHECK(expected.steps == 4);
  for (uint32_t servers : {1, 2, 3, 4}) {
    for (uint32_t workers : {1, 2, 3, 4, 5, 6}) {
      INFO(servers << " servers, " << workers << " workers");
      CheckBits(expected, config, servers, workers);
    }
  }
}

TEST_CASE("local steps whose state is kept: the bits hold while no part changes its worker") {
  const v1::JobConfig config =
      DigitsJob(Plus(kLocal, {"local.keep_state=true", "local.steps=4", "consistency.parts=3"}));
  const SerialRun expected = Reference(config);
  for (uint32_t workers : {1, 3}) {
    INFO(workers << " workers");
    CheckBits(expected, config, 2, workers);
  }
}

TEST_CASE("local steps: other inner rules, and the mean of the pushes clipped") {
  for (const char* type : {"sgd", "momentum", "adagrad", "rmsprop", "adamw", "lion"}) {
    INFO(type);
    const v1::JobConfig config = DigitsJob(
        Plus(kLocal, {absl::StrCat("local.inner.type=", type), "train.examples=413", "local.steps=3",
                      "train.clip=mean", "train.clip_norm=0.1", "consistency.parts=3"}));
    CheckBits(Reference(config), config, 2, 2);
  }
}

TEST_CASE("one local step of plain SGD with rate 1 is a step without local steps") {
  const SerialRun expected = Reference(DigitsJob({}));
  const v1::JobConfig config = DigitsJob({R"(local={"steps":1,"inner":{"type":"sgd","learning_rate":1}})"});
  CheckBits(expected, config, 2, 2);
}

TEST_CASE("local steps: workers that go and come at any point of a step") {
  const v1::JobConfig config = DigitsJob(Plus(kLocal, {"local.steps=4", "consistency.parts=4"}));
  const SerialRun expected = Reference(config);
  CHECK(expected.steps == 13);
  for (uint64_t pieces : {1, 2, 13}) {
    for (uint32_t rank : {0, 1}) {
      INFO("worker " << rank << " goes after " << pieces << " pieces");
      CheckBits(expected, config, 2, std::vector<WorkerRun>{{rank, 0, pieces}, {1 - rank, 0, {}}});
    }
  }
  CheckBits(expected, config, 2, std::vector<WorkerRun>{{0, 0, {}}, {1, 0, 9}, {1, 7, {}}});
}

TEST_CASE("repeated runs") {
  const v1::JobConfig config = DigitsJob({"train.examples=413"});
  const SerialRun expected = Reference(config);
  for (int run = 0; run < 5; ++run) CheckBits(expected, config, 2, 4);
}

TEST_CASE("the hash tells jobs apart") {
  // Shows that the equalities above can fail.
  const Overrides length = {"train.examples=413"};
  const v1::JobConfig config = DigitsJob(length);
  std::map<std::string, std::string> seen = {{Reference(config).weights_sha256, "the job"}};
  for (const char* other :
       {"seed=2", "consistency.parts=2", "train.micro_batches=1", "train.clip_norm=0", "train.examples=412",
        "model.layers[3].rate=0.1", "optimizer.weight_decay=0.001", "optimizer.clip_weights=0.1",
        "optimizer.l2=0.001", "optimizer.amsgrad=true", "train.clip_value=0.001",
        R"(optimizer.schedule={"type":"linear"})", R"(local={"steps":2,"inner":{"learning_rate":1}})",
        R"(local={"steps":3,"inner":{"learning_rate":1}})",
        R"(local={"steps":2,"inner":{"type":"adam","learning_rate":1}})",
        R"(local={"steps":2,"inner":{"type":"adam","learning_rate":1},"keep_state":true})",
        R"(local={"steps":2,"inner":{"learning_rate":1,"schedule":{"type":"linear"}}})"}) {
    INFO(other);
    const auto [it, fresh] = seen.emplace(Reference(DigitsJob(Plus(length, {other}))).weights_sha256, other);
    INFO("same as " << it->second);
    CHECK(fresh);
  }
}

TEST_CASE("quantised pushes: any number of servers and workers, and workers that go in mid-step",
          "[transports]") {
  std::vector<std::string> hashes = {Reference(DigitsJob({"train.examples=413"})).weights_sha256};
  // 8 KiB for each of four servers, where a block of 256 values is on one of them; 128 KiB for one of 4,096.
  for (const auto& [type, units] : std::vector<std::pair<const char*, const char*>>{
           {"int8", "128"}, {"int4", "128"}, {"bit1", "128"}, {"topk", "1800"}}) {
    INFO(type);
    const v1::JobConfig config =
        DigitsJob({absl::StrCat("wire.push_dtype=", type), "wire.error_feedback=false", "train.examples=413",
                   absl::StrCat("model.layers[1].units=", units), "server.min_shard_kib=0"});
    const auto one = RunInProcess(config, 1, 1);
    INFO(one.status().ToString());
    REQUIRE(one.ok());
    const SerialRun expected{{}, one->weights_sha256, one->steps};
    hashes.push_back(one->weights_sha256);
    for (const auto& [servers, workers] :
         std::vector<std::pair<uint32_t, uint32_t>>{{2, 4}, {3, 2}, {4, 6}}) {
      INFO(servers << " servers, " << workers << " workers");
      CheckBits(expected, config, servers, workers, workers > 4 ? 2 : 0);
    }
    CheckBits(expected, config, 4, std::vector<WorkerRun>{{0, 0, 9}, {1, 0, {}}});
  }
  // Each type has bits of its own.
  std::sort(hashes.begin(), hashes.end());
  CHECK(std::adjacent_find(hashes.begin(), hashes.end()) == hashes.end());
}

TEST_CASE("local steps with quantised pushes: any number of servers and workers") {
  const Overrides job = Plus(kLocal, {"wire.push_dtype=int8", "model.layers[1].units=128"});
  const SerialRun& expected = SerialDigits(job);
  CHECK(expected.weights_sha256 != Reference(DigitsJob(Plus(job, {"wire.push_dtype=f32"}))).weights_sha256);
  for (const auto& [servers, workers] : std::vector<std::pair<uint32_t, uint32_t>>{{1, 4}, {3, 1}, {3, 4}}) {
    INFO(servers << " servers, " << workers << " workers");
    CheckBits(expected, DigitsJob(Plus(job, {"server.min_shard_kib=0"})), servers, workers);
  }
}

TEST_CASE("workers held back at random") {
  const v1::JobConfig config = DigitsJob({});
  const SerialRun expected = Reference(config);
  CheckBits(expected, DigitsJob({"debug.worker_delay=0.02", "debug.delayed_worker=1"}), 2, 2);
  CheckBits(expected, DigitsJob({"debug.worker_delay=0.01", "debug.delayed_worker=0"}), 3, 4);
  CheckBits(expected, DigitsJob({"debug.worker_delay=0.01"}), 2, 4);
}

TEST_CASE("workers that push their parts in a random order", "[transports]") {
  const v1::JobConfig config = DigitsJob({"consistency.parts=8"});
  const SerialRun expected = Reference(config);
  CheckBits(expected, config, 2, std::vector<WorkerRun>{{0, 0, {}, true}});
  CheckBits(expected, config, 3, std::vector<WorkerRun>{{0, 0, {}, true}, {1, 0, {}, true}});
}

TEST_CASE("every level of the server's kernels") {
  const std::vector<std::pair<KernelLevel, std::string>> levels = {
      {KernelLevel::kPlain, "plain"}, {KernelLevel::kAvx2, "avx2"}, {KernelLevel::kAvx512, "avx512"}};
  for (const Overrides& job : {Overrides{}, kMomentum}) {
    const SerialRun expected = Reference(DigitsJob(job));
    for (const auto& [level, name] : levels) {
      if (!HasKernels(level)) {
        SaySkipped("this CPU lacks what kernels " + name + " need");
        continue;
      }
      INFO("kernels " << name);
      CheckBits(expected, DigitsJob(Plus(job, {"server.kernels=" + name})), 2, 2);
    }
  }
}

TEST_CASE("apply threads") {
  const v1::JobConfig config = DigitsJob({"train.examples=413", "model.layers[1].units=1500"});
  const SerialRun expected = Reference(config);
  for (const char* threads : {"server.apply_threads=1", "server.apply_threads=4"}) {
    INFO(threads);
    CheckBits(expected, DigitsJob({"train.examples=413", "model.layers[1].units=1500", threads}), 1, 2);
  }
}

void CheckTransports(const Overrides& job) {
  const SerialRun& expected = SerialDigits(job);
  for (const char* transport : {"tcp", "unix", "shared_memory", "auto"}) {
    for (const Overrides& chunks : {Overrides{"wire.chunk_kib=1024", "wire.chunks_in_flight=2"},
                                    Overrides{"wire.chunk_kib=256", "wire.chunks_in_flight=1"},
                                    Overrides{"wire.chunk_kib=256", "wire.chunks_in_flight=5"}}) {
      INFO(transport << ", " << chunks[0] << ", " << chunks[1]);
      const Overrides wire = Plus({absl::StrCat("wire.transport=", transport)}, chunks);
      CheckBits(expected, DigitsJob(Plus(job, wire)), 1, 2);
    }
  }
}

TEST_CASE("every transport, with shards of several chunks") {
  Overrides job = {"train.examples=157", "model.layers[1].units=7000"};
  for (const char* type : {"f32", "int8"}) {
    job.push_back(absl::StrCat("wire.push_dtype=", type));
    CheckTransports(job);
  }
}

TEST_CASE("workers that go and come, at any point of a step", "[transports]") {
  const v1::JobConfig config = DigitsJob({});
  const SerialRun expected = Reference(config);
  // With two workers each has two parts a step: after an odd number of pieces the worker leaves in mid-step,
  // one part pushed and one not.
  for (uint64_t pieces : {0, 1, 2, 13, 40, 75}) {
    for (uint32_t rank : {0, 1}) {
      INFO("worker " << rank << " goes after " << pieces << " pieces");
      const std::vector<WorkerRun> runs = {{rank, 0, pieces}, {1 - rank, 0, {}}};
      CheckBits(expected, config, 2, runs, pieces == 0 ? 1 : 0);
    }
  }
}

TEST_CASE("workers that come later or again", "[transports]") {
  const v1::JobConfig config = DigitsJob({});
  const SerialRun expected = Reference(config);
  const std::map<std::string, std::vector<WorkerRun>> stories = {
      {"one comes later", {{0, 0, {}}, {1, 10, {}}}},
      {"one goes and comes again, twice", {{0, 0, {}}, {1, 0, 9}, {1, 12, 11}, {1, 25, {}}}},
      {"all are replaced", {{0, 0, 17}, {1, 0, 24}, {0, 9, 12}, {2, 9, {}}, {1, 20, {}}}},
  };
  for (const auto& [story, runs] : stories) {
    INFO(story);
    CheckBits(expected, config, 2, runs);
  }
}

}  // namespace
}  // namespace weir
