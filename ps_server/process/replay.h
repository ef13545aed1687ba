#pragma once

#include <cstdint>
#include <functional>
#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "common/system/file_system.h"

namespace weir {

struct ReplayResult {
  // The state from which the replay started: "version 0", or a checkpoint's folder.
  std::string start;
  // Records in the logs.
  uint64_t records = 0;
  std::vector<uint64_t> versions;  // by shard
  std::string weights_sha256;
  std::string tables_sha256;  // "": the job has no embedding tables
};

// Recomputes the last weights of a bounded or async job from the logs in its folder of checkpoints. Starts
// from version 0, or else from the oldest checkpoint that the logs still follow. Only reads; no server may
// use the folder meanwhile. `passed_over` is called for each starting state that is not available, with the
// reason.
absl::StatusOr<ReplayResult> ReplayJob(FileSystem& files, const std::string& directory,
                                       const std::function<void(const std::string&)>& passed_over);

}  // namespace weir
