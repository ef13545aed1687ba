#pragma once

#include <cstdint>
#include <functional>
#include <map>
#include <memory>
#include <tuple>

#include "absl/status/status.h"
#include "worker/compute/compute_backend.h"

namespace weir {

// A part of a pass: the same calls again and again, on the same memory if the Key is the same. Calls that are
// made a second time are captured (ComputeBackend::Capture), and replayed from then on. Destroyed before the
// backend. Not thread-safe.
class RepeatedCalls {
 public:
  // Everything that the calls depend on and that is not always the same: sizes, factors, a choice, addresses.
  using Key = std::tuple<int64_t, float, bool, const void*, const void*, const void*>;

  // Makes the calls, directly or by replay. They may be kept, and made again with the same key. Returns the
  // error of a capture; the calls were made nevertheless, but this object should not be used any more.
  absl::Status Run(ComputeBackend* backend, const Key& key, const std::function<void()>& calls);

 private:
  // The number of keys that are kept: each costs memory on the device. Other keys are of rare sizes.
  static constexpr size_t kMost = 16;

  // Null: the calls were made once, so that their scratch memory is there.
  std::map<Key, std::unique_ptr<ComputeBackend::Captured>> captured_;
};

}  // namespace weir
