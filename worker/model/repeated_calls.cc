#include "worker/model/repeated_calls.h"

#include <utility>

namespace weir {

absl::Status RepeatedCalls::Run(ComputeBackend* backend, const Key& key, const std::function<void()>& calls) {
  const auto found = captured_.find(key);
  if (found == captured_.end()) {
    if (captured_.size() < kMost) captured_[key] = nullptr;
    calls();
    return absl::OkStatus();
  }
  if (found->second == nullptr) {
    auto captured = backend->Capture(calls);
    if (!captured.ok()) {
      calls();
      return captured.status();
    }
    found->second = *std::move(captured);
  }
  backend->Replay(found->second.get());
  return absl::OkStatus();
}

}  // namespace weir
