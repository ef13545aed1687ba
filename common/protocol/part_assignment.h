#pragma once

#include <algorithm>
#include <cstddef>
#include <cstdint>

namespace weir {

// sync: which of n live workers, counted by rising rank, computes a part of the open step. n >= 1. Follows
// from the membership alone, so that every worker and every server agree on it without a message.
inline size_t OwnerOfPart(uint32_t part, size_t live_workers) { return part % live_workers; }

// sync: how many of a step's parts must be there for the step to commit.
inline uint32_t PartsToCommit(uint32_t parts, uint32_t backup_workers) {
  return parts > backup_workers ? parts - backup_workers : std::min(parts, 1u);
}

}  // namespace weir
