#include "ps_server/coordinator/step_committer.h"

#include "common/protocol/part_assignment.h"

namespace weir {

std::optional<StepCommitter::Commit> StepCommitter::Ready(uint32_t parts, size_t shards) const {
  if (staged_.size() < shards) return std::nullopt;
  Commit commit;
  std::map<uint32_t, size_t> arrived;
  for (const auto& [shard, staged] : staged_) {
    if (staged.step() != committed_) return std::nullopt;
    for (uint32_t part : staged.parts()) ++arrived[part];
    commit.refused.insert(staged.refused_parts().begin(), staged.refused_parts().end());
    if (commit.reason.empty()) commit.reason = staged.reason();
  }
  std::vector<uint32_t> complete;
  for (const auto& [part, holders] : arrived) {
    if (holders == shards) complete.push_back(part);
  }
  const uint32_t needed = PartsToCommit(parts, backup_workers_);
  if (complete.size() < needed) return std::nullopt;
  commit.step.set_step(committed_);
  for (uint32_t part : complete) {
    if (commit.refused.count(part) > 0) continue;
    if (commit.step.parts_size() < static_cast<int>(needed)) commit.step.add_parts(part);
  }
  return commit;
}

void StepCommitter::Committed(const Commit& commit) {
  staged_.clear();
  pushes_[committed_] = static_cast<uint32_t>(commit.step.parts_size());
  ++committed_;
}

uint64_t StepCommitter::PushesSince(uint64_t step) const {
  uint64_t pushes = 0;
  for (auto it = pushes_.lower_bound(step); it != pushes_.end(); ++it) pushes += it->second;
  return pushes;
}

void StepCommitter::GoBackTo(uint64_t committed) {
  committed_ = committed;
  staged_.clear();
  pushes_.clear();
}

}  // namespace weir
