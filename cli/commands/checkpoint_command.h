#pragma once

#include <string>

#include "cli/commands/coordinator_address.h"

// `weir checkpoint take`, `list` and `verify`, and `weir export`: work with checkpoints from outside the job.
// All return the exit code.
namespace weir {

// Makes a running job take a checkpoint now, and waits until it is complete. Prints a line with its folder on
// stdout. 64, 78: there is no address, or no good one; 78: the job takes no checkpoints; 138: nothing
// answers, or the checkpoint failed.
int RunCheckpointTake(const ClusterFlags& cluster);

// Prints a table of the checkpoints in a folder. 78: there are none.
int RunCheckpointList(const std::string& directory);

// Reads one checkpoint (of a folder, the newest) and checks it against its checksums. 1: it is damaged; the
// message names the file and, if the damage lies in a tensor, the tensor. 78: there is no checkpoint.
int RunCheckpointVerify(const std::string& path);

// Writes the weights of one checkpoint (of a folder, the newest) into one safetensors file. `with`: a
// safetensors file whose tensors are added where the checkpoint has none of the name; "": none. 1: the
// checkpoint is damaged; 78: there is none, `with` is of another model, or the file cannot be written.
int RunExport(const std::string& path, const std::string& out, const std::string& with);

}  // namespace weir
