#pragma once

#include <cstdint>
#include <functional>
#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "common/system/file_system.h"

namespace weir {

struct ReplayResult {
  // What it went on from: "version 0", or a checkpoint's folder.
  std::string start;
  // Of the logs.
  uint64_t records = 0;
  std::vector<uint64_t> versions;  // by shard
  std::string weights_sha256;
};

// Makes the weights of a bounded or async job again, as its servers had them last: from version 0, or else
// the oldest checkpoint, that the logs in its folder of checkpoints still follow, and these logs. Reads
// alone; no server may be at work there. `passed_over` hears of each beginning that cannot be had, and why.
absl::StatusOr<ReplayResult> ReplayJob(FileSystem& files, const std::string& directory,
                                       const std::function<void(const std::string&)>& passed_over);

}  // namespace weir
