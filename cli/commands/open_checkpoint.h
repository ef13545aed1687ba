#pragma once

#include <string>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "common/checkpoint/checkpoint_reader.h"

namespace weir {

// Opens the checkpoint that a path of the command line means, whose folder it returns, too. Warns about
// checkpoints that were passed over.
absl::StatusOr<CheckpointReader> OpenCheckpoint(const std::string& path, std::string* folder);

// The exit code of a command that cannot read or write a checkpoint.
int CheckpointExitCode(const absl::Status& status);

}  // namespace weir
