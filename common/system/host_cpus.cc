#include "common/system/host_cpus.h"

#include <sched.h>

#include <algorithm>
#include <cmath>
#include <sstream>
#include <thread>
#include <vector>

#include "common/base/control_group.h"

namespace weir {
namespace {

// CPU time a period, and the period, in microseconds. No quota is "max", or -1.
void Restrict(const std::string& quota, const std::string& period, int* cpus) {
  double time = 0, of = 0;
  if (!(std::istringstream(quota) >> time) || !(std::istringstream(period) >> of) || time <= 0 || of <= 0) {
    return;
  }
  *cpus = std::min(*cpus, std::max(1, static_cast<int>(std::ceil(std::min(time / of, 1e6)))));
}

}  // namespace

int UsableCpus(const std::string& root) {
  int cpus = std::max(1, static_cast<int>(std::thread::hardware_concurrency()));
  cpu_set_t set;
  if (sched_getaffinity(0, sizeof set, &set) == 0) cpus = std::max(1, CPU_COUNT(&set));
  // "200000 100000": quota and period.
  const std::vector<std::string> quotas = ControlGroupLines("cpu", "cpu.max", "cpu.cfs_quota_us", root);
  const std::vector<std::string> periods = ControlGroupLines("cpu", "cpu.max", "cpu.cfs_period_us", root);
  for (size_t i = 0; i < std::min(quotas.size(), periods.size()); ++i) {
    const size_t blank = periods[i].find(' ');
    Restrict(quotas[i], blank == std::string::npos ? periods[i] : periods[i].substr(blank), &cpus);
  }
  return cpus;
}

}  // namespace weir
