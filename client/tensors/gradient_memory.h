#pragma once

#include <cstdint>
#include <memory>
#include <vector>

#include "common/model/model_spec.h"
#include "common/system/float_pool.h"
#include "common/system/shared_memory.h"
#include "common/threads/mutex.h"

namespace weir {

// Memory in which a training program makes its gradients, each of a whole model, tensors end to end. If
// servers on this host can read it in place, it lies in segments that can be handed to them. Memory that was
// let go is used again, and may outlive this object. Thread-safe.
class GradientMemory {
 public:
  // shared: in segments, where available.
  GradientMemory(const ModelSpec& model, bool shared);

  // Memory with any contents.
  std::shared_ptr<float> Take();

  // The segment that consists of exactly these float32 tensors, in the model's order; null: they lie
  // elsewhere, or in memory that was given up.
  std::shared_ptr<const SharedSegment> Find(const std::vector<const void*>& tensors) const;

  // A server may still be reading the segment for a push that has failed. So its memory is not used again,
  // and what its holder still pushes from it is copied.
  void GiveUp(const SharedSegment& segment);

 private:
  struct Segments {
    Mutex mutex;
    // The segments that a server may read in place, in use or free.
    std::vector<std::shared_ptr<SharedSegment>> all ABSL_GUARDED_BY(mutex);
    std::vector<std::shared_ptr<SharedSegment>> free ABSL_GUARDED_BY(mutex);
  };

  const std::vector<int64_t> elements_;  // by tensor
  const uint64_t bytes_;
  const bool shared_;
  FloatPool<> plain_;
  const std::shared_ptr<Segments> segments_ = std::make_shared<Segments>();
};

}  // namespace weir
