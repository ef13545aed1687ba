#pragma once

#include <cstdint>
#include <string>

namespace weir {

// How many CPUs this process may use: those of its affinity mask, or the quota of its control groups
// (Kubernetes' limits.cpu, `docker run --cpus`), rounded up, if that is less. At least 1. `root` is put
// before the paths of /proc and /sys.
int UsableCpus(const std::string& root = "");

// This machine's memory, in bytes; 0: not known.
struct HostMemory {
  uint64_t total = 0, available = 0;
  uint64_t limit = 0;  // of the container (cgroup v2, v1); 0: none

  // The most that processes may take.
  uint64_t most() const { return limit > 0 ? limit : total; }
};

// `root` is put before the paths of /proc and /sys.
HostMemory LookAtMemory(const std::string& root = "");

}  // namespace weir
