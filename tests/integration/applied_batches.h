#pragma once

#include <cstdint>
#include <functional>

#include "absl/status/status.h"
#include "common/checkpoint/checkpoint_reader.h"

namespace weir {

// bounded, async: calls `applied` for each batch that a shard of the checkpoint says to have applied.
absl::Status ForEachApplied(const CheckpointReader& reader,
                            const std::function<void(uint32_t shard, uint64_t batch)>& applied);

}  // namespace weir
