#include "cli/config/checkpoints.h"

#include <vector>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"

namespace weir {

std::string DescribeCheckpoints(const v1::JobConfig& config) {
  const v1::CheckpointConfig& checkpoint = config.checkpoint();
  if (!checkpoint.has_directory()) {
    return "checkpoints: none (checkpoint.directory is not set); a lost server ends the job";
  }
  std::vector<std::string> when;
  if (checkpoint.every_steps() > 0)
    when.push_back(absl::StrCat("every ", checkpoint.every_steps(), " steps"));
  if (checkpoint.every_seconds() > 0) {
    when.push_back(absl::StrCat("every ", checkpoint.every_seconds(), " s"));
  }
  if (when.empty()) when.push_back("at intervals that follow from what one costs");
  return absl::StrCat("checkpoints: ", absl::StrJoin(when, " and "), " and at the job's end, in ",
                      checkpoint.directory(), ", the newest ", checkpoint.keep(), " kept",
                      config.server().durability() == v1::ServerConfig::DURABILITY_LOG
                          ? "; a log of each push beside them"
                          : "");
}

}  // namespace weir
