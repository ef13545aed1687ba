#include "common/system/host_cpus.h"

#include <sched.h>

#include <algorithm>
#include <cmath>
#include <sstream>
#include <string>
#include <thread>

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

}  // namespace weir
