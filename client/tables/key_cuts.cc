#include "client/tables/key_cuts.h"

#include <utility>

#include "common/model/key_bucket.h"

namespace weir {
namespace {

KeyCut CutOf(absl::Span<const uint64_t> keys, uint32_t shards) {
  KeyCut cut;
  cut.batch = GroupByKey(keys);
  cut.of_shard.resize(shards);
  for (std::vector<uint32_t>& own : cut.of_shard) {
    // The hash levels the shards.
    own.reserve(cut.batch.keys.size() / shards + cut.batch.keys.size() / 16 + 16);
  }
  for (size_t i = 0; i < cut.batch.keys.size(); ++i) {
    cut.of_shard[ShardOfKey(cut.batch.keys[i], shards)].push_back(static_cast<uint32_t>(i));
  }
  return cut;
}

}  // namespace

std::shared_ptr<const KeyCut> KeyCuts::Find(uint32_t table, absl::Span<const uint64_t> keys) const {
  MutexLock lock(mutex_);
  for (const Kept& kept : kept_[table]) {
    if (kept.cut != nullptr && keys == absl::MakeConstSpan(kept.keys)) return kept.cut;
  }
  return nullptr;
}

std::shared_ptr<const KeyCut> KeyCuts::Cut(uint32_t table, absl::Span<const uint64_t> keys) {
  std::shared_ptr<const KeyCut> cut = Find(table, keys);
  if (cut != nullptr) return cut;
  cut = std::make_shared<const KeyCut>(CutOf(keys, shards_));
  Kept kept{{keys.begin(), keys.end()}, cut};
  MutexLock lock(mutex_);
  std::swap(kept_[table][0], kept_[table][1]);
  // The oldest one goes when the lock is released.
  std::swap(kept_[table][0], kept);
  return cut;
}

}  // namespace weir
