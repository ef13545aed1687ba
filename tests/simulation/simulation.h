#pragma once

#include <cstdint>
#include <functional>
#include <string>
#include <vector>

#include "tests/simulation/invariants.h"
#include "tests/simulation/plan.h"
#include "tests/simulation/site.h"

namespace weir {

struct SimulationResult {
  uint64_t trace_hash = 0;
  uint64_t events = 0, messages = 0, operations = 0;
  // Until the job had ended.
  absl::Duration elapsed;
  bool failed = false;
  FaultCounts faults;
  std::vector<Violation> violations;
};

// Runs a whole cluster in this thread: the shipped coordinator, shards, clients and training loop with
// simulated gradients, clock, network and disk, as the plan says, and checks the result. `plant` may plant a
// bug (planted_bugs.h); null: none.
SimulationResult RunSimulation(const Plan& plan, const std::function<void(Site*)>& plant = nullptr,
                               bool verbose = false);

}  // namespace weir
