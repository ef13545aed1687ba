#pragma once

#include <cstdint>
#include <map>
#include <utility>
#include <vector>

#include "tests/simulation/ledger.h"

namespace weir {

// One shard's rows of the ledger's table, as docs/tables.md defines them, by a plain loop over the pushes:
// values, ages, counts of keys that are not admitted, expiry and quotas. Shares no code with a server's
// tables.
class RowModel {
 public:
  // Version 0. `ledger` outlives the model.
  RowModel(const Ledger* ledger, uint32_t shard) : ledger_(ledger), shard_(shard) {}

  // Makes the next version from the pushes of these batches, in this order: in sync the parts of a step, else
  // one batch.
  void Update(const std::vector<uint64_t>& batches);

  uint64_t rows() const { return rows_.size(); }
  uint64_t counters() const { return counters_.size(); }
  // The values of Ledger::KeysOf(), one key after the other; zeros where a key has no row.
  std::vector<float> Values() const;

  bool operator==(const RowModel& other) const {
    return version_ == other.version_ && rows_ == other.rows_ && counters_ == other.counters_;
  }

 private:
  struct Row {
    uint64_t updated = 0;
    std::vector<float> values = std::vector<float>(Ledger::kDim, 0.0f);
    bool operator==(const Row& other) const { return updated == other.updated && values == other.values; }
  };
  struct Counter {
    uint64_t updated = 0;
    uint32_t pushes = 0;
    bool operator==(const Counter& other) const { return updated == other.updated && pushes == other.pushes; }
  };
  const Ledger::RowRules& rules() const { return ledger_->options().rules; }
  void UpdateKey(uint64_t key, const std::vector<uint64_t>& batches);
  void Evict();
  template <typename Of>
  void Expire(std::map<uint64_t, Of>& entries) const;

  const Ledger* ledger_;
  uint32_t shard_;
  uint64_t version_ = 0;
  std::map<uint64_t, Row> rows_;
  std::map<uint64_t, Counter> counters_;
};

// sync: the values of the shard's rows after all steps.
std::vector<float> SerialRows(const Ledger& ledger, uint32_t shard);

}  // namespace weir
