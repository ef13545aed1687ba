#pragma once

#include <cstdint>
#include <map>
#include <vector>

#include "ps_server/table/table.h"

namespace weir {

// The meaning of a table of all shards, written as plainly as it goes: ordered maps, one key and one value
// after the other, copies of everything for a pin. Tables have to hold the same bits.
class ReferenceTable {
 public:
  struct Row {
    uint64_t updated = 0;
    std::vector<float> values;
    std::vector<float> slots[2];  // of each value
    float h = 0;                  // row-wise adagrad
    uint32_t t = 0;               // adam
  };
  struct Counter {
    uint64_t updated = 0;
    uint32_t pushes = 0;
  };
  struct State {
    std::map<uint64_t, Row> rows;
    std::map<uint64_t, Counter> counters;
  };

  // Of the options, shard, num_shards, kernels and threads do not matter.
  explicit ReferenceTable(const Table::Options& options) : options_(options) {}

  void Update(absl::Span<const Table::Part> parts, double learning_rate);
  uint64_t version() const { return version_; }
  const State& state() const { return state_; }
  uint64_t expired() const { return expired_; }
  uint64_t evicted() const { return evicted_; }

  // The values of a key in a state.
  std::vector<float> Read(const State& state, uint64_t key) const;
  // The words of a row, as RowOptimizer has them.
  std::vector<float> Words(const Row& row) const;

 private:
  void Step(Row& row, const std::vector<float>& gradient, double learning_rate) const;
  void Evict();
  void Expire();

  const Table::Options options_;
  uint64_t version_ = 0, expired_ = 0, evicted_ = 0;
  State state_;
};

}  // namespace weir
