#include "tests/simulation/planted_bugs.h"

namespace weir {

std::vector<PlantedBug> InJobsWithTable(std::vector<PlantedBug> bugs) {
  for (PlantedBug& bug : bugs) {
    if (bug.in == nullptr) bug.in = [](const Plan& plan) { return plan.ledger.table; };
  }
  return bugs;
}

bool HasEarlyRows(const Plan& plan) { return plan.early_rows(); }

std::vector<PlantedBug> PlantedBugs() {
  std::vector<PlantedBug> all;
  for (const std::vector<PlantedBug>& some :
       {PlantedInPolicies(), PlantedInMessages(), PlantedInClients(), PlantedInChunks(), PlantedInCodec(),
        PlantedInStaleness(), PlantedInTraining(), PlantedOnDisk(), PlantedInMemory(), PlantedInRows(),
        PlantedInTables()}) {
    all.insert(all.end(), some.begin(), some.end());
  }
  return all;
}

}  // namespace weir
