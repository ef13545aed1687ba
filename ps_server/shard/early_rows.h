#pragma once

#include <cstddef>
#include <cstdint>
#include <vector>

#include "proto/checkpoint.pb.h"
#include "ps_server/shard/row_arrival.h"

namespace weir {

// sync with consistency.tables "async": which parts of the open step have their rows in the tables already,
// although their dense values wait for the commit. A part whose dense values are lost, because a checkpoint
// was taken meanwhile and restored, is pushed again, perhaps to other shards; its rows must not count again.
//
// Belongs to the shard's queue.
class EarlyRows {
 public:
  // Before anything else: which shard this is, of how many, and what the checkpoint knows, perhaps from
  // shards of other numbers.
  void Begin(uint32_t shard, uint32_t num_shards, const v1::ShardState& state);
  // The rows of this part are about to be applied: leaves those that are not in the tables. False: this shard
  // has had the part, and its version of the tables counts it.
  bool Take(uint32_t part, PushedRows& rows);
  // The parts that this shard has had.
  size_t taken() const { return taken_; }
  // The step is committed: its parts cannot come again.
  void Commit();

  void Save(v1::ShardState& state) const;

 private:
  bool IsOwn(const v1::AppliedRows& rows) const {
    return rows.shard() == shard_ && rows.num_shards() == num_shards_;
  }

  uint32_t shard_ = 0, num_shards_ = 1;
  std::vector<v1::AppliedRows> applied_;
  size_t taken_ = 0;  // of applied_: those of this shard
};

}  // namespace weir
