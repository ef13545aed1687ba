// The checker is worth the bugs that it catches: each planted bug must be caught within the seeds that ./dev
// test runs, by the invariants that docs/guarantees_tests.md names for it.
#include "tests/simulation/planted_bugs.h"

#include <algorithm>
#include <cstdio>
#include <optional>
#include <vector>

#include "catch2/catch.hpp"
#include "tests/share.h"
#include "tests/simulation/simulation.h"

namespace weir {
namespace {

constexpr uint64_t kSeeds = 600;

bool Named(const PlantedBug& bug, Invariant invariant) {
  return std::count(bug.caught_by.begin(), bug.caught_by.end(), invariant) > 0;
}

// The first invariant of those that must notice the bug that does notice it, if the seed leaves room for the
// bug and its run passes without it.
std::optional<Invariant> Caught(const PlantedBug& bug, uint64_t seed) {
  const Plan plan = MakePlan(seed);
  if (bug.in != nullptr && !bug.in(plan)) return std::nullopt;
  const SimulationResult result = RunSimulation(plan, bug.plant);
  for (const Violation& violation : result.violations) {
    if (!Named(bug, violation.invariant)) continue;
    return RunSimulation(plan).violations.empty() ? std::optional<Invariant>(violation.invariant)
                                                  : std::nullopt;
  }
  return std::nullopt;
}

TEST_CASE("Each planted bug is caught by an invariant named for it within the seeds that are run anyway") {
  std::printf("%-30s %-14s %s\n", "bug", "caught by", "seed");
  const std::vector<PlantedBug> bugs = PlantedBugs();
  const Share share = ThisShare();
  for (size_t i = share.index; i < bugs.size(); i += share.count) {
    const PlantedBug& bug = bugs[i];
    std::optional<Invariant> caught_by;
    uint64_t seed = 0;
    while (seed < kSeeds && !caught_by.has_value()) caught_by = Caught(bug, ++seed);
    std::printf("%-30s %-14s %d\n", bug.name, caught_by.has_value() ? Name(*caught_by) : "-",
                static_cast<int>(seed));
    std::fflush(stdout);
    INFO(bug.name << ": " << bug.what);
    CHECK(caught_by.has_value());
  }
}

}  // namespace
}  // namespace weir
