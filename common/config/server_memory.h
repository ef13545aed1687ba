#pragma once

#include <cstdint>

#include "absl/status/status.h"
#include "proto/job_config.pb.h"

namespace weir {

// How much memory a server of a job needs (docs/memory.md), in multiples of W, the bytes of its weights.

// Returns whether a push is applied while it arrives, to weights and slots beside those that are read.
bool AppliesStreamed(const v1::JobConfig& config);

// Checks that a server can do one step at all with this much memory (0: no limit is known), in a job of
// `workers` workers, if no client reads, nothing is saved, and no two pushes arrive at once. InvalidArgument:
// it cannot; says the sum.
absl::Status CheckServerMemory(const v1::JobConfig& config, uint32_t workers, int64_t elements,
                               uint64_t servers, uint64_t memory_bytes);

}  // namespace weir
