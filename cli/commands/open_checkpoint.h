#pragma once

#include <cstdint>
#include <string>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "common/checkpoint/checkpoint_reader.h"

namespace weir {

// Opens the checkpoint that a path of the command line means, whose folder it returns, too. Warns about
// checkpoints that were passed over.
absl::StatusOr<CheckpointReader> OpenCheckpoint(const std::string& path, std::string* folder);

// The same for the newest checkpoint before this step that is whole, in a folder of checkpoints. DataLoss:
// none is.
absl::StatusOr<CheckpointReader> OpenWholeBefore(const std::string& path, uint64_t step, std::string* folder);

// The exit code of a command that cannot read or write a checkpoint.
int CheckpointExitCode(const absl::Status& status);

}  // namespace weir
