#include "common/base/host.h"

#include <sched.h>

#include <algorithm>
#include <cmath>
#include <fstream>
#include <sstream>
#include <thread>

#include "absl/algorithm/container.h"
#include "absl/strings/numbers.h"
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

int UsableCpus(const std::string& root) {
  int cpus = std::max(1, static_cast<int>(std::thread::hardware_concurrency()));
  cpu_set_t set;
  if (sched_getaffinity(0, sizeof set, &set) == 0) cpus = std::max(1, CPU_COUNT(&set));
  // "200000 100000": CPU time a period, and the period, in microseconds. No quota is "max", or -1.
  for (const std::string& line :
       ControlGroupLines("cpu", "cpu.max", {"cpu.cfs_quota_us", "cpu.cfs_period_us"}, root)) {
    double quota = 0, period = 0;
    if (!(std::istringstream(line) >> quota >> period) || quota <= 0 || period <= 0) continue;
    cpus = std::min(cpus, std::max(1, static_cast<int>(std::ceil(std::min(quota / period, 1e6)))));
  }
  return cpus;
}

HostMemory LookAtMemory(const std::string& root) {
  HostMemory memory;
  std::ifstream lines(root + "/proc/meminfo");
  std::string key;
  uint64_t kilobytes = 0;
  // "MemTotal:       16000000 kB"
  for (std::string line; lines >> key >> kilobytes && std::getline(lines, line);) {
    if (key == "MemTotal:") memory.total = kilobytes * 1024;
    if (key == "MemAvailable:") memory.available = kilobytes * 1024;
  }
  for (const std::string& line : ControlGroupLines("memory", "memory.max", {"memory.limit_in_bytes"}, root)) {
    uint64_t limit = 0;
    // No limit is "max", or a number beyond all memory.
    if (absl::SimpleAtoi(line, &limit) && limit < memory.total) {
      memory.limit = memory.limit == 0 ? limit : std::min(memory.limit, limit);
    }
  }
  return memory;
}

}  // namespace weir
