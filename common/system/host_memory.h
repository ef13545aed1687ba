#pragma once

#include <cstdint>
#include <string>

namespace weir {

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
