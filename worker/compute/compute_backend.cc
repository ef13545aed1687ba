#include "worker/compute/compute_backend.h"

#include <utility>

namespace weir {
namespace {

// For backends whose calls cost nothing besides their work.
struct CapturedCalls final : ComputeBackend::Captured {
  explicit CapturedCalls(std::function<void()> c) : calls(std::move(c)) {}
  const std::function<void()> calls;
};

}  // namespace

absl::StatusOr<std::unique_ptr<ComputeBackend::Captured>> ComputeBackend::Capture(
    std::function<void()> calls) {
  return std::make_unique<CapturedCalls>(std::move(calls));
}

void ComputeBackend::Replay(Captured* captured) { static_cast<CapturedCalls*>(captured)->calls(); }

absl::string_view PrecisionName(Precision precision) {
  switch (precision) {
    case Precision::kTf32:
      return "tf32";
    case Precision::kBfloat16:
      return "bf16";
    case Precision::kFloat32:
      break;
  }
  return "float32";
}

}  // namespace weir
