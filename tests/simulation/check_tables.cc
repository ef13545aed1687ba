// Checks the rows of each version of each shard against a plain serial model of the table (row_model.h):
// their values, and how many rows and counts there are.
#include <algorithm>
#include <cstring>

#include "tests/simulation/checker.h"

namespace weir {
namespace {

// So many pushes of one event, whose order no answer tells, are tried in every order.
constexpr size_t kMostUnordered = 4;

}  // namespace

void Checker::CheckTables() {
  if (!ledger_.options().table || plan_.early_rows()) return;
  // In the order of time, since a shard starts with what some incarnation of it had.
  struct Line {
    absl::Duration at;
    const Restored* restored;
    const Published* published;
  };
  std::vector<Line> lines;
  for (const Restored& line : log_.restored) {
    if (line.weights != nullptr) lines.push_back({line.at, &line, nullptr});
  }
  for (const auto* published : {&log_.published, &log_.published_when_replaced}) {
    for (const Published& line : *published) {
      if (line.weights != nullptr) lines.push_back({line.at, nullptr, &line});
    }
  }
  std::stable_sort(lines.begin(), lines.end(), [](const Line& a, const Line& b) { return a.at < b.at; });
  for (const Line& line : lines) {
    if (line.restored != nullptr) {
      TakeUpTable(*line.restored);
    } else {
      CheckRows(*line.published);
    }
  }
  for (const TableSeen& seen : log_.tables) CheckSizes(seen);
}

void Checker::TakeUpTable(const Restored& line) {
  ShardTable now{line.incarnation, line.version, line.weights, {}};
  const ShardTable* newest = nullptr;
  std::vector<ShardTable>& known = tables_[line.shard];
  if (line.version == 0) now.models.emplace_back(&ledger_, line.shard);
  for (const ShardTable& before : known) {
    if (newest == nullptr || before.version >= newest->version) newest = &before;
    // Several incarnations may have had the same values at a version, and other counts.
    const bool same =
        before.version == line.version &&
        std::memcmp(before.weights->data(), line.weights->data(), line.weights->size() * sizeof(float)) == 0;
    for (size_t i = 0; same && i < before.models.size(); ++i) AddOnce(before.models[i], &now.models);
  }
  // The log may hold pushes beyond what was published.
  if (now.models.empty() && plan_.logs() && newest != nullptr && newest->version < line.version) {
    now.models = Advance(*newest, now, line.shard);
  }
  known.push_back(std::move(now));
}

void Checker::CheckRows(const Published& line) {
  std::vector<ShardTable>& known = tables_[line.shard];
  const auto before = std::find_if(known.rbegin(), known.rend(), [&](const ShardTable& table) {
    return table.incarnation == line.incarnation && table.version == line.from;
  });
  ShardTable now{line.incarnation, line.to, line.weights, {}};
  if (before != known.rend() && !before->models.empty()) now.models = Advance(*before, now, line.shard);
  known.push_back(std::move(now));
}

std::vector<std::vector<uint64_t>> Checker::OrdersOf(const ShardTable& from, const ShardTable& to,
                                                     uint32_t shard) const {
  std::vector<uint64_t> unordered;
  std::vector<std::optional<uint64_t>> order(to.version - from.version);
  for (uint64_t batch = 0; batch < ledger_.batches(); ++batch) {
    if ((*to.weights)[batch] == (*from.weights)[batch]) continue;
    std::optional<uint64_t>* place = nullptr;
    const uint64_t who = Who(*to.weights, batch);
    for (const auto& [key, push] : answered_) {
      const v1::Version& version = push->reply.version();
      if (std::get<0>(key) != who || std::get<1>(key) != shard || push->batch != batch ||
          push->reply.outcome() != v1::OK || version.incarnation() != to.incarnation ||
          version.count() <= from.version || version.count() > to.version) {
        continue;
      }
      place = &order[version.count() - from.version - 1];
    }
    if (place != nullptr && !place->has_value()) {
      *place = batch;
    } else {
      unordered.push_back(batch);
    }
  }
  const auto open = static_cast<size_t>(std::count(order.begin(), order.end(), std::nullopt));
  if (unordered.size() != open || open > kMostUnordered) return {};
  std::vector<std::vector<uint64_t>> orders;
  do {
    size_t next = 0;
    std::vector<uint64_t>& full = orders.emplace_back();
    for (const std::optional<uint64_t>& batch : order) {
      full.push_back(batch.has_value() ? *batch : unordered[next++]);
    }
  } while (std::next_permutation(unordered.begin(), unordered.end()));
  return orders;
}

std::vector<RowModel> Checker::Advance(const ShardTable& from, const ShardTable& to, uint32_t shard) {
  std::vector<RowModel> reached;
  if (sync()) {
    std::vector<uint64_t> parts;
    for (uint64_t batch = 0; batch < ledger_.batches(); ++batch) {
      if ((*to.weights)[batch] != (*from.weights)[batch]) parts.push_back(batch);
    }
    for (RowModel model : from.models) {
      model.Update(parts);
      AddOnce(model, &reached);
    }
  } else {
    for (const std::vector<uint64_t>& order : OrdersOf(from, to, shard)) {
      for (RowModel model : from.models) {
        for (uint64_t batch : order) model.Update({batch});
        AddOnce(model, &reached);
      }
    }
  }
  if (reached.empty()) return {};  // what happened cannot be told
  const auto begin = static_cast<size_t>(ledger_.elements());
  std::vector<RowModel> right;
  for (const RowModel& model : reached) {
    const std::vector<float> values = model.Values();
    if (to.weights->size() == begin + values.size() &&
        std::memcmp(values.data(), to.weights->data() + begin, values.size() * sizeof(float)) == 0) {
      right.push_back(model);
    }
  }
  if (!right.empty()) return right;
  const std::vector<float> values = reached[0].Values();
  if (to.weights->size() != begin + values.size()) {
    Violate(Invariant::kRows, "ps:", shard, " has no rows in version ", to.version);
    return {};
  }
  size_t at = 0;
  while (std::memcmp(&values[at], &(*to.weights)[begin + at], sizeof(float)) == 0) ++at;
  Violate(Invariant::kRows, "ps:", shard, " has ", (*to.weights)[begin + at], " in column ",
          at % Ledger::kDim, " of key ", ledger_.KeysOf(shard)[at / Ledger::kDim], " in version ", to.version,
          ", where a plain loop has ", values[at]);
  return {};
}

void Checker::CheckSizes(const TableSeen& seen) {
  const auto of_shard = tables_.find(seen.shard);
  if (of_shard == tables_.end()) return;
  for (ShardTable& table : of_shard->second) {
    if (table.incarnation != seen.incarnation || table.version != seen.version || table.models.empty()) {
      continue;
    }
    const bool right = std::any_of(table.models.begin(), table.models.end(), [&](const RowModel& model) {
      return model.rows() == seen.rows && model.counters() == seen.counters;
    });
    if (right) continue;
    Violate(Invariant::kRows, "ps:", seen.shard, " has ", seen.rows, " rows and ", seen.counters,
            " counts of keys in version ", seen.version, ", a plain loop ", table.models[0].rows(), " and ",
            table.models[0].counters());
  }
}

}  // namespace weir
