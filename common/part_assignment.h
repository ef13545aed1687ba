#pragma once

#include <cstddef>
#include <cstdint>

namespace weir {

// sync: which of n live workers, counted by rising rank, computes a part of the open step. n >= 1. Follows
// from the membership alone, so that every worker and every server agree on it without a message.
inline size_t OwnerOfPart(uint32_t part, size_t live_workers) { return part % live_workers; }

}  // namespace weir
