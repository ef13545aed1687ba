#pragma once

#include <cstdint>
#include <string>
#include <vector>

namespace weir {

// The settings of this process's control groups, its own group first and then each group above, as far as
// this process sees them: the limits of all groups hold. Each setting is the first line of `file` (second
// version of control groups), or in the hierarchy of `controller` those of the files `first_version`, with a
// blank between two. Groups without one of the files are left out. `root` is put before the paths of /proc
// and /sys.
std::vector<std::string> ControlGroupLines(const std::string& controller, const std::string& file,
                                           const std::vector<std::string>& first_version,
                                           const std::string& root = "");

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
