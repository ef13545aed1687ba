#pragma once

#include <string>

#include "absl/status/statusor.h"
#include "proto/job_config.pb.h"

namespace weir {

// Looks at the checkpoints that a job is to start from, before anything is started. Returns a line for people
// about them; "": the job starts anew. `resume`: the job goes on with the job of `directory`, and there must
// be a checkpoint. Otherwise there must be none, so that two jobs never share a folder by accident. In both
// cases `directory` must be a folder that this user can write to or make. Errors name the field, the path and
// what to do.
absl::StatusOr<std::string> FindStart(const v1::CheckpointConfig& checkpoint, bool resume);

}  // namespace weir
