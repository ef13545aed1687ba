#include "worker/parameter_buffers.h"

#include <utility>

#include "common/base/status_macros.h"

namespace weir {

void ParameterBuffers::Add(float* memory) {
  MutexLock lock(mutex_);
  free_.push_back(memory);
}

absl::StatusOr<std::shared_ptr<float>> ParameterBuffers::Take() {
  float* memory = nullptr;
  {
    MutexLock lock(mutex_);
    if (!free_.empty()) {
      memory = free_.back();
      free_.pop_back();
    }
  }
  if (memory == nullptr) {
    WEIR_ASSIGN_OR_RETURN(own_.emplace_back(),
                          Buffer<float>::Make(backend_, ComputeBackend::Memory::kHost, elements_));
    memory = own_.back().get();
  }
  return std::shared_ptr<float>(memory, [this](float* returned) { Add(returned); });
}

}  // namespace weir
