#pragma once

#include <cstdint>
#include <memory>
#include <vector>

#include "client/tensors/float_buffers.h"
#include "common/model/model_spec.h"
#include "common/sync/mutex.h"
#include "common/system/shared_memory.h"

namespace weir {

// Memory that a training program makes its gradients in, each a whole model's, tensors end to end; where
// servers on this host are to read it in place, in segments that can be handed to them. It comes back for the
// next who asks, and may outlive this. Thread-safe.
class GradientMemory {
 public:
  // shared: in segments, where they can be had.
  GradientMemory(const ModelSpec& model, bool shared);

  // Holds anything.
  std::shared_ptr<float> Take();

  // The segment that these tensors of float32, in the model's order, are all of; null: they are elsewhere, or
  // in memory that was given up.
  std::shared_ptr<const SharedSegment> Find(const std::vector<const void*>& tensors) const;

  // A server may still be reading there for a push that has failed: the memory is used no more for others,
  // and what its holder goes on to push from it is copied.
  void GiveUp(const SharedSegment& segment);

 private:
  struct Segments {
    Mutex mutex;
    // Those that may be read in place, in use or free.
    std::vector<std::shared_ptr<SharedSegment>> all ABSL_GUARDED_BY(mutex);
    std::vector<std::shared_ptr<SharedSegment>> free ABSL_GUARDED_BY(mutex);
  };

  const std::vector<int64_t> elements_;  // by tensor
  const uint64_t bytes_;
  const bool shared_;
  FloatBuffers plain_;
  const std::shared_ptr<Segments> segments_ = std::make_shared<Segments>();
};

}  // namespace weir
