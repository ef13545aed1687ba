#pragma once

#include <filesystem>
#include <iterator>

namespace weir {

// The number of descriptors that this process has open.
inline int OpenDescriptors() {
  const std::filesystem::directory_iterator open("/proc/self/fd");
  return static_cast<int>(std::distance(begin(open), end(open)));
}

}  // namespace weir
