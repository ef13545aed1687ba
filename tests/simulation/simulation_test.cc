// A share of the seeds that ./dev test runs; which one the build rule says (SEEDS_FROM).
#include "tests/simulation/simulation.h"

#include <string>

#include "catch2/catch.hpp"

namespace weir {
namespace {

constexpr uint64_t kFirst = SEEDS_FROM, kSeeds = SEEDS;

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
