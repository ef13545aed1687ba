#include "ps_server/shard/early_rows.h"

#include <algorithm>

#include "common/model/key_bucket.h"

namespace weir {
namespace {

// Keeps the rows whose keys `applied` does not have.
void KeepOthers(const v1::AppliedRows& applied, PushedRows::OfTable& rows) {
  size_t kept = 0;
  for (size_t i = 0; i < rows.keys.count; ++i) {
    if (ShardOfKey(rows.keys.keys[i], applied.num_shards()) == applied.shard()) continue;
    rows.keys.keys[kept] = rows.keys.keys[i];
    std::copy_n(rows.gradients.get() + i * rows.dim, rows.dim, rows.gradients.get() + kept * rows.dim);
    ++kept;
  }
  rows.keys.count = kept;
}

}  // namespace

void EarlyRows::Begin(uint32_t shard, uint32_t num_shards, const v1::ShardState& state) {
  shard_ = shard;
  num_shards_ = num_shards;
  applied_.assign(state.applied_rows().begin(), state.applied_rows().end());
  taken_ = static_cast<size_t>(std::count_if(applied_.begin(), applied_.end(),
                                             [this](const v1::AppliedRows& rows) { return IsOwn(rows); }));
}

bool EarlyRows::Take(uint32_t part, PushedRows& rows) {
  bool is_new = true;
  for (const v1::AppliedRows& applied : applied_) {
    if (applied.part() != part) continue;
    if (IsOwn(applied)) is_new = false;
    for (PushedRows::OfTable& of : rows.tables) KeepOthers(applied, of);
  }
  if (!is_new) return false;
  v1::AppliedRows& now = applied_.emplace_back();
  now.set_part(part);
  now.set_shard(shard_);
  now.set_num_shards(num_shards_);
  ++taken_;
  return true;
}

void EarlyRows::Commit() {
  applied_.clear();
  taken_ = 0;
}

void EarlyRows::Save(v1::ShardState& state) const {
  state.mutable_applied_rows()->Add(applied_.begin(), applied_.end());
}

}  // namespace weir
