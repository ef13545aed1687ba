#pragma once

#include <functional>
#include <vector>

#include "tests/simulation/invariants.h"
#include "tests/simulation/site.h"

namespace weir {

// A bug that other parameter servers have, or that would break one of Weir's promises, and how it gets into a
// run.
struct PlantedBug {
  const char* name;
  // In words.
  const char* what;
  // Which of them must notice: any of these. What another one notices besides does not count.
  std::vector<Invariant> caught_by;
  std::function<void(Site*)> plant;
};

// All of them.
std::vector<PlantedBug> PlantedBugs();
// By where they are.
std::vector<PlantedBug> PlantedInPolicies();
std::vector<PlantedBug> PlantedInMessages();
std::vector<PlantedBug> PlantedInClients();
std::vector<PlantedBug> PlantedOnDisk();
std::vector<PlantedBug> PlantedInMemory();

}  // namespace weir
