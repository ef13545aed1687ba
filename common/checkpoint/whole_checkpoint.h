#pragma once

#include <cstdint>
#include <functional>
#include <string>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "common/checkpoint/checkpoint_folder.h"
#include "common/system/file_system.h"

namespace weir {

// Reads every byte of the checkpoint in this folder, and of what it builds on. Errors: as CheckpointReader.
absl::Status ReadWhole(FileSystem& fs, const std::string& folder);

// The newest checkpoint of a step below `below` in a folder of checkpoints that is whole, as ReadWhole()
// says. `damaged` is called for each checkpoint that is not, with its folder and what is wrong; may be null.
// DataLoss: none is whole, or the path names one checkpoint; says what was seen.
using OnDamaged = std::function<void(const std::string& folder, const std::string& why)>;
absl::StatusOr<FoundCheckpoint> FindWholeBefore(FileSystem& fs, const std::string& path, uint64_t below,
                                                const OnDamaged& damaged = nullptr);

}  // namespace weir
