#pragma once

#include <memory>
#include <utility>
#include <vector>

#include "common/sync/mutex.h"

namespace weir {

// A pool of buffers of one size. Each is made, and its pages are faulted in, once. A buffer may outlive the
// pool. Thread-safe.
class FloatBuffers {
 public:
  explicit FloatBuffers(size_t elements) : elements_(elements), free_(std::make_shared<Free>()) {}

  // A buffer with any contents.
  std::shared_ptr<float> Take() {
    std::unique_ptr<float[]> buffer;
    {
      MutexLock lock(free_->mutex);
      if (!free_->buffers.empty()) {
        buffer = std::move(free_->buffers.back());
        free_->buffers.pop_back();
      }
    }
    if (buffer == nullptr) buffer.reset(new float[elements_]);
    return {buffer.release(), [free = free_](float* done) {
              MutexLock lock(free->mutex);
              free->buffers.emplace_back(done);
            }};
  }

 private:
  struct Free {
    Mutex mutex;
    std::vector<std::unique_ptr<float[]>> buffers ABSL_GUARDED_BY(mutex);
  };
  const size_t elements_;
  const std::shared_ptr<Free> free_;
};

}  // namespace weir
