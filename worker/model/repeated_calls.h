#pragma once

#include <cstdint>
#include <functional>
#include <map>
#include <memory>
#include <tuple>

#include "absl/status/status.h"
#include "worker/compute/compute_backend.h"

namespace weir {

// A part of a pass: the same calls again and again, on the same memory where the same Key says so. What is
// made twice is captured (ComputeBackend::Capture), and replayed from then on. Goes before the backend. Not
// thread-safe.
class RepeatedCalls {
 public:
  // All that the calls depend on and that is not always the same: sizes, factors, a choice, addresses.
  using Key = std::tuple<int64_t, float, bool, const void*, const void*, const void*>;

  // Makes the calls, one way or the other. They may be kept, and made again with the same key. The error of a
  // capture, after which they were made nevertheless: it is of no use to go on with this.
  absl::Status Run(ComputeBackend* backend, const Key& key, const std::function<void()>& calls);

 private:
  // Keys that are kept: each costs memory on the device. Others are of rare sizes.
  static constexpr size_t kMost = 16;

  // Null: they were made once, so that their scratch memory is there.
  std::map<Key, std::unique_ptr<ComputeBackend::Captured>> captured_;
};

}  // namespace weir
