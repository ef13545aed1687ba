#pragma once

#include <string>

#include "cli/commands/coordinator_address.h"

// `weir checkpoint take`, `list` and `verify`, and `weir export`: checkpoints from outside of the job. All
// return the exit code.
namespace weir {

// Has a running job take a checkpoint now and waits until it is complete: a line with its folder on stdout.
// 64, 78: no or no good address; 78: the job takes none; 138: nothing answers, or the checkpoint failed.
int RunCheckpointTake(const ClusterFlags& cluster);

// A table of the checkpoints in a folder. 78: there are none.
int RunCheckpointList(const std::string& directory);

// Reads all of one checkpoint (the newest of a folder of them) and holds it against its checksums. 1: it is
// damaged; the message names the file and, where the damage lies in one, the tensor. 78: there is none.
int RunCheckpointVerify(const std::string& path);

// Writes the weights of one checkpoint (the newest of a folder of them) into one safetensors file. 1: it is
// damaged, 78: there is none, or the file cannot be written.
int RunExport(const std::string& path, const std::string& out);

}  // namespace weir
