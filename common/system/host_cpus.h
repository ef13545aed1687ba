#pragma once

#include <string>

namespace weir {

// How many CPUs this process may use: those of its affinity mask, or the quota of its control groups
// (Kubernetes' limits.cpu, `docker run --cpus`), rounded up, if that is less. At least 1. `root` is put
// before the paths of /proc and /sys.
int UsableCpus(const std::string& root = "");

}  // namespace weir
