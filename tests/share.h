#pragma once

#include <cstdint>
#include <cstdlib>
#include <string>

namespace weir {

// The share of a long test that this process runs, of `count` that run side by side: the build rule's
// shard_count. Without Bazel the only one.
struct Share {
  uint64_t index = 0, count = 1;
};

inline Share ThisShare() {
  const char* const index = std::getenv("TEST_SHARD_INDEX");
  const char* const count = std::getenv("TEST_TOTAL_SHARDS");
  return index == nullptr || count == nullptr ? Share() : Share{std::stoull(index), std::stoull(count)};
}

}  // namespace weir
