#include "common/system/host_memory.h"

#include <fstream>

#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"

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
  for (const char* path : {"/sys/fs/cgroup/memory.max", "/sys/fs/cgroup/memory/memory.limit_in_bytes"}) {
    std::string word;
    std::ifstream(absl::StrCat(root, path)) >> word;
    uint64_t limit = 0;
    // No limit is "max", or a number beyond all memory.
    if (absl::SimpleAtoi(word, &limit) && limit < memory.total) {
      memory.limit = limit;
      break;
    }
  }
  return memory;
}

}  // namespace weir
