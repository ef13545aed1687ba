// The seeds that ./dev test runs.
#include "tests/simulation/simulation.h"

#include <string>

#include "catch2/catch.hpp"
#include "tests/share.h"

namespace weir {
namespace {

const uint64_t kSeeds = 600 / ThisShare().count, kFirst = 1 + kSeeds * ThisShare().index;

TEST_CASE("No seed breaks an invariant") {
  for (uint64_t seed = kFirst; seed < kFirst + kSeeds; ++seed) {
    const Plan plan = MakePlan(seed);
    const SimulationResult result = RunSimulation(plan);
    if (result.violations.empty()) continue;
    INFO(plan.ToString());
    INFO("replay: ./dev chaos --sim --first-seed=" << seed << " --seeds=1 --trace");
    std::string all;
    for (const Violation& violation : result.violations) {
      all += std::string(Name(violation.invariant)) + ": " + violation.what + "\n";
    }
    CHECK(all == "");
  }
}

// Streamed asynchronous pushes of as many workers as a host has. The versions made of overtaken pushes once
// blocked the next version.
TEST_CASE("Many workers who overtake each other's pushes go on") {
  for (const uint32_t workers : {7, 12, 24}) {
    Plan plan = MakePlan(kFirst + workers);
    plan.config.mutable_consistency()->set_mode(v1::ConsistencyConfig::MODE_ASYNC);
    plan.config.mutable_server()->set_apply(v1::ServerConfig::APPLY_STREAMED);
    plan.config.mutable_consistency()->clear_prefetch();
    plan.config.clear_checkpoint();
    plan.config.mutable_cluster()->clear_min_workers();
    plan.config.mutable_cluster()->set_workers(workers);
    plan.ledger.sync = plan.may_fail = false;
    plan.ledger.shards = 2;
    plan.config.mutable_server()->set_min_shard_kib(0);
    plan.standby = 0;
    plan.ledger.poisoned.clear();
    plan.ledger.total_examples = 10 * workers * plan.ledger.batch_size;
    plan.config.mutable_train()->set_examples(plan.ledger.total_examples);
    WorkerPlan worker;
    worker.compute_least = absl::Milliseconds(5);
    worker.compute_most = absl::Milliseconds(20);
    plan.workers.assign(workers, worker);
    for (uint32_t rank = 0; rank < workers; rank += 2) plan.workers[rank].in_place = true;
    plan.readers.clear();
    plan.faults.clear();
    plan.network = NetworkFaults();
    for (const bool shared_memory : {false, true}) {
      plan.shared_memory = shared_memory;
      const SimulationResult result = RunSimulation(plan);
      INFO(plan.ToString());
      CHECK(result.violations.empty());
      CHECK(result.elapsed < absl::Seconds(10));
    }
  }
}

TEST_CASE("One seed is one run: the trace is the same again, and another seed's is another") {
  for (uint64_t seed = kFirst; seed < kFirst + 5; ++seed) {
    const Plan plan = MakePlan(seed);
    const SimulationResult first = RunSimulation(plan), again = RunSimulation(plan);
    CHECK(first.trace_hash == again.trace_hash);
    CHECK(first.events == again.events);
    CHECK(first.operations == again.operations);
    CHECK(first.trace_hash != RunSimulation(MakePlan(seed + 1)).trace_hash);
  }
}

}  // namespace
}  // namespace weir
