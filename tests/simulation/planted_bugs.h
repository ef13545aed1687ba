#pragma once

#include <functional>
#include <vector>

#include "tests/simulation/invariants.h"
#include "tests/simulation/site.h"

namespace weir {

// A bug that other parameter servers have, or that would break one of Weir's promises, and the code that puts
// it into a run.
struct PlantedBug {
  const char* name;
  // A description in words.
  const char* what;
  // At least one of these must notice the bug. Other invariants that notice it do not count.
  std::vector<Invariant> caught_by;
  std::function<void(Site*)> plant;
  // The plans that leave room for the bug, the only ones in which it is planted; null: all.
  bool (*in)(const Plan&) = nullptr;
};

bool HasEarlyRows(const Plan& plan);
// Returns the bugs; bugs without an `in` are planted in jobs with a table alone.
std::vector<PlantedBug> InJobsWithTable(std::vector<PlantedBug> bugs);

// All planted bugs.
std::vector<PlantedBug> PlantedBugs();
// By the place of the bug.
std::vector<PlantedBug> PlantedInPolicies();
std::vector<PlantedBug> PlantedInMessages();
std::vector<PlantedBug> PlantedInClients();
std::vector<PlantedBug> PlantedInChunks();
std::vector<PlantedBug> PlantedInCodec();
std::vector<PlantedBug> PlantedInStaleness();
std::vector<PlantedBug> PlantedInTraining();
std::vector<PlantedBug> PlantedOnDisk();
std::vector<PlantedBug> PlantedInMemory();
std::vector<PlantedBug> PlantedInRows();
std::vector<PlantedBug> PlantedInTables();

}  // namespace weir
