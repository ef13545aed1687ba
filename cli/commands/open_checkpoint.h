#pragma once

#include <cstdint>
#include <string>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "common/checkpoint/checkpoint_reader.h"

namespace weir {

// Opens the checkpoint that a path of the command line means, and sets `folder` to its folder. Warns about
// newer checkpoints that are damaged and were passed over.
absl::StatusOr<CheckpointReader> OpenCheckpoint(const std::string& path, std::string* folder);

// Opens the newest whole checkpoint before this step in a folder of checkpoints, as OpenCheckpoint() does.
// Errors: DataLoss: no checkpoint before this step is whole.
absl::StatusOr<CheckpointReader> OpenWholeBefore(const std::string& path, uint64_t step, std::string* folder);

// Returns the exit code of a command that cannot read or write a checkpoint.
int CheckpointExitCode(const absl::Status& status);

}  // namespace weir
