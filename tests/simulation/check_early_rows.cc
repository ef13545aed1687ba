// Checks the rows of tables that take effect before their step does (sync, consistency.tables "async").
#include <set>
#include <utility>

#include "tests/simulation/checker.h"

namespace weir {

void Checker::CheckEarlyRows(uint32_t shard, uint64_t version, const std::vector<float>& all) {
  auto at = static_cast<size_t>(ledger_.elements());
  // What a worker reads in place, and what a reader without rows reads, is weights alone.
  if (!plan_.early_rows() || all.size() <= at) return;
  const uint64_t open_end = std::min(ledger_.batches(), (version + 1) * ledger_.options().parts);
  for (uint64_t key : ledger_.KeysOf(shard)) {
    // (pushes, sum of batch + 1) of what the row may hold: once what the weights hold, and of the other parts
    // of the steps until now, the open one included, any, each once.
    std::set<std::pair<double, double>> possible = {{0, 0}};
    for (uint64_t batch = 0; batch < open_end; ++batch) {
      if (!ledger_.HasKey(batch, key) || ledger_.poisoned(batch, shard)) continue;
      std::set<std::pair<double, double>> with;
      if (!Has(all, batch)) with = possible;
      for (const auto& [pushes, sum] : possible)
        with.insert({pushes + 1, sum + static_cast<double>(batch + 1)});
      possible = std::move(with);
    }
    if (possible.count({all[at], all[at + 1]}) == 0) {
      return Violate(Invariant::kRows, "ps:", shard, " in version ", version, " has ", all[at],
                     " pushes of key ", key, ", whose batches sum to ", all[at + 1], "; at least ",
                     possible.begin()->first, " and at most ", possible.rbegin()->first,
                     " pushes can be there");
    }
    at += Ledger::kDim;
  }
}

}  // namespace weir
