#include "common/system/host_memory.h"

#include <algorithm>
#include <fstream>

#include "absl/strings/numbers.h"
#include "common/base/control_group.h"

namespace weir {

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
