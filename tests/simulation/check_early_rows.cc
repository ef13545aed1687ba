// Checks the rows of tables that take effect before their step does (sync, consistency.tables "async"). The
// check compares them with a plain serial model of each shard's table (row_model.h), which takes the parts in
// the order in which the shard took them.
#include <algorithm>
#include <cstring>
#include <set>
#include <string>
#include <utility>

#include "tests/simulation/checker.h"

namespace weir {

bool Checker::SameWeights(const std::vector<float>& one, const std::vector<float>& other) const {
  const auto bytes = static_cast<size_t>(ledger_.elements()) * sizeof(float);
  return std::memcmp(one.data(), other.data(), bytes) == 0;
}

bool Checker::HasRows(const std::vector<float>& all, const RowModel& table) const {
  const std::vector<float> values = table.Values();
  const auto begin = static_cast<size_t>(ledger_.elements());
  return all.size() == begin + values.size() &&
         std::memcmp(all.data() + begin, values.data(), values.size() * sizeof(float)) == 0;
}

template <typename Fits>
void Checker::Keep(const EarlyRowsEvent& event, EarlyProcess& process, const std::string& what, Fits fits) {
  if (process.possible.empty()) return;
  std::vector<EarlyRows> right;
  for (const EarlyRows& rows : process.possible) {
    if (fits(rows)) right.push_back(rows);
  }
  process.possible = std::move(right);
  if (!process.possible.empty()) return;
  moments_missing_ = true;
  Violate(Invariant::kRows, "ps:", event.shard, " at step ", process.step, " has ", what,
          ", which a plain loop has in no order that fits");
}

void Checker::FollowEarlyRows() {
  if (!plan_.early_rows() || !ledger_.options().poisoned.empty()) return;
  std::map<uint64_t, EarlyProcess> processes;
  for (const EarlyRowsEvent& event : log_.early_rows) {
    EarlyProcess& process = processes[event.process];
    const bool seen = process.seen;
    FollowEarlyRows(event, process);
    moments_missing_ |= process.seen && process.possible.empty();
    // What is only seen again is no further moment.
    const bool changes =
        event.kind == EarlyRowsEvent::Kind::kPart || event.kind == EarlyRowsEvent::Kind::kCommitted;
    if (!changes && seen) continue;
    for (const EarlyRows& rows : process.possible) {
      moments_[event.shard].push_back({process.step, process.weights, rows});
    }
  }
}

void Checker::FollowEarlyRows(const EarlyRowsEvent& event, EarlyProcess& process) {
  switch (event.kind) {
    case EarlyRowsEvent::Kind::kBegun:
      process = EarlyProcess();
      return;
    case EarlyRowsEvent::Kind::kPart:
      moments_missing_ |= !process.seen;
      for (EarlyRows& rows : process.possible) {
        if (rows.parts.insert(event.batch).second) rows.table.Update({event.batch});
      }
      return;
    case EarlyRowsEvent::Kind::kCommitted:
      ++process.step;
      process.weights = std::make_shared<Weights>();
      for (EarlyRows& rows : std::exchange(process.possible, {})) {
        // Each step is as many versions of the table.
        for (size_t part = rows.parts.size(); part < ledger_.options().parts; ++part) rows.table.Update({});
        rows.parts.clear();
        AddOnce(rows, &process.possible);
      }
      return;
    case EarlyRowsEvent::Kind::kCounted:
      return Keep(event, process, absl::StrCat(event.rows, " rows and ", event.counters, " counts of keys"),
                  [&](const EarlyRows& rows) {
                    return rows.table.rows() == event.rows && rows.table.counters() == event.counters;
                  });
    case EarlyRowsEvent::Kind::kSeen:
      break;
  }
  if (event.weights == nullptr) {
    process.seen = true;
    process.possible.clear();
    return;
  }
  if (!std::exchange(process.seen, true)) {
    process.step = event.version;
    process.weights = std::make_shared<Weights>();
    if (event.version == 0) process.possible.push_back({RowModel(&ledger_, event.shard), {}});
    for (const EarlyMoment& moment : moments_[event.shard]) {
      const bool may_be = moment.step == event.version && *moment.weights != nullptr &&
                          SameWeights(**moment.weights, *event.weights);
      if (may_be) AddOnce(moment.rows, &process.possible);
    }
  }
  *process.weights = event.weights;
  Keep(event, process, "other rows",
       [&](const EarlyRows& rows) { return HasRows(*event.weights, rows.table); });
}

void Checker::CheckEarlyRows(uint32_t shard, uint64_t version, const std::vector<float>& all) {
  // What a worker reads in place, and what a reader without rows reads, is weights alone.
  if (!plan_.early_rows() || all.size() <= static_cast<size_t>(ledger_.elements())) return;
  if (!ledger_.options().poisoned.empty()) return CheckPushesIn(shard, version, all);
  if (moments_missing_) return;
  const std::vector<EarlyMoment>& moments = moments_[shard];
  if (std::none_of(moments.begin(), moments.end(), [&](const EarlyMoment& moment) {
        return moment.step == version && *moment.weights != nullptr && SameWeights(**moment.weights, all) &&
               HasRows(all, moment.rows.table);
      })) {
    Violate(Invariant::kRows, "the rows of ps:", shard, " with the weights of version ", version,
            " are of no moment of that version");
  }
}

void Checker::CheckPushesIn(uint32_t shard, uint64_t version, const std::vector<float>& all) {
  auto at = static_cast<size_t>(ledger_.elements());
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
