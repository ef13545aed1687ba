#include "ps_server/shard/rows/row_memory.h"

#include <atomic>
#include <new>
#include <utility>

#include "absl/status/status.h"

namespace weir {

RowMemory::RowMemory(SlabSource shared) {
  const auto made = std::make_shared<std::atomic<uint64_t>>(0);  // bytes
  for (int k = 0; k < kSizes; ++k) {
    pools_.push_back(std::make_unique<FloatPool<Made>>(
        (kSmallest << k) / sizeof(float), [made, shared](size_t values) -> Made {
          const uint64_t bytes = values * sizeof(float);
          if (made->fetch_add(bytes) + bytes <= kMostShared) {
            if (std::shared_ptr<float> memory = shared(values); memory != nullptr) return memory;
          }
          made->fetch_sub(bytes);
          return absl::ResourceExhaustedError("as many buffers as there may be");
        }));
  }
}

std::shared_ptr<float> RowMemory::Take(size_t values) {
  const uint64_t bytes = values * sizeof(float);
  for (int k = 0; k < kSizes && bytes >= kLeastShared; ++k) {
    if (bytes > kSmallest << k) continue;
    // If there may be no more buffers of this size, take one of the next size.
    if (Made memory = pools_[static_cast<size_t>(k)]->Take(); memory.ok()) return *std::move(memory);
  }
  return {new (std::nothrow) float[values], std::default_delete<float[]>()};
}

}  // namespace weir
