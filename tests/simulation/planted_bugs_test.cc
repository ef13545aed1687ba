// The checker is worth what it catches: each planted bug must be caught within the seeds that ./dev test
// runs.
#include "tests/simulation/planted_bugs.h"

#include <cstdio>
#include <string>

#include "catch2/catch.hpp"
#include "common/planted_bug.h"
#include "tests/simulation/simulation.h"

namespace weir {
namespace {

constexpr uint64_t kSeeds = 600;

TEST_CASE("Each planted bug is caught within the seeds that are run anyway") {
  std::printf("%-30s %-14s %s\n", "bug", "caught by", "seed");
  for (const PlantedBug& bug : PlantedBugs()) {
    std::string caught_by;
    uint64_t seed = 1;
    for (; seed <= kSeeds && caught_by.empty(); ++seed) {
      const Plan plan = MakePlan(seed);
      const SimulationResult result = RunSimulation(plan, bug.plant);
      SetPlanted("");
      // One that this seed has anyway does not count.
      if (!result.violations.empty() && RunSimulation(plan).violations.empty()) {
        caught_by = Name(result.violations[0].invariant);
      }
    }
    std::printf("%-30s %-14s %d\n", bug.name, caught_by.empty() ? "-" : caught_by.c_str(),
                static_cast<int>(seed - 1));
    std::fflush(stdout);
    INFO(bug.name << ": " << bug.what);
    CHECK_FALSE(caught_by.empty());
  }
}

TEST_CASE("Nothing is planted unless a test says so") {
  CHECK_FALSE(Planted("batch applied twice"));
  SetPlanted("batch applied twice");
  CHECK(Planted("batch applied twice"));
  CHECK_FALSE(Planted("unweighted mean"));
  SetPlanted("");
}

}  // namespace
}  // namespace weir
