#include "common/system/host.h"

#include <sched.h>

#include <algorithm>
#include <cmath>
#include <fstream>
#include <sstream>
#include <string>
#include <thread>

#include "absl/strings/numbers.h"
#include "common/base/control_group.h"

namespace weir {

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
