#include "common/base/control_group.h"

#include <algorithm>
#include <fstream>

#include "absl/algorithm/container.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "absl/strings/str_split.h"

namespace weir {
namespace {

void AddLines(const std::string& mount, std::string group, const std::vector<std::string>& files,
              std::vector<std::string>* lines) {
  while (true) {
    std::vector<std::string> found;
    for (const std::string& file : files) {
      std::string line;
      if (std::getline(std::ifstream(absl::StrCat(mount, group, group == "/" ? "" : "/", file)), line)) {
        found.push_back(line);
      }
    }
    if (found.size() == files.size()) lines->push_back(absl::StrJoin(found, " "));
    if (group.size() <= 1) return;
    group.resize(std::max<size_t>(group.rfind('/'), 1));
  }
}

}  // namespace

std::vector<std::string> ControlGroupLines(const std::string& controller, const std::string& file,
                                           const std::vector<std::string>& first_version,
                                           const std::string& root) {
  std::vector<std::string> found;
  // "4:pids:/user" in the first version, "0::/user" in the second. A container may see a path of the host
  // here, and only its own groups: then those above the path that is not there have its limits.
  std::ifstream groups(root + "/proc/self/cgroup");
  for (std::string line; std::getline(groups, line);) {
    const std::vector<std::string> parts = absl::StrSplit(line, absl::MaxSplits(':', 2));
    if (parts.size() != 3) continue;
    if (parts[1].empty()) {
      AddLines(root + "/sys/fs/cgroup", parts[2], {file}, &found);
      AddLines(root + "/sys/fs/cgroup/unified", parts[2], {file}, &found);
    } else if (absl::c_linear_search(absl::StrSplit(parts[1], ','), controller)) {
      AddLines(absl::StrCat(root, "/sys/fs/cgroup/", controller), parts[2], first_version, &found);
    }
  }
  return found;
}

}  // namespace weir
