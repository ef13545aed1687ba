// Bugs of a shard's memory: what is written there, and how long readers may read it.
#include <memory>

#include "tests/simulation/planted_bugs.h"

namespace weir {
namespace {

// The factor of the first part of this thread's sum. That part is whole: a step's short part is its last.
thread_local float first_factor = 0;

void UnweightedMean(Site* site) {
  static const Kernels kernels = [] {
    Kernels changed = kPlainKernels;
    changed.scale = [](float* out, float factor, const void* in, size_t n) {
      first_factor = factor;
      return kPlainKernels.scale(out, factor, in, n);
    };
    changed.accumulate = [](float* sum, float, const void* in, size_t n) {
      return kPlainKernels.accumulate(sum, first_factor, in, n);
    };
    return changed;
  }();
  site->seams.kernels = &kernels;
}

// All versions lie in the same memory.
void TornPull(Site* site) {
  site->seams.weights_source = [](uint32_t) -> SlabSource {
    auto slab = std::make_shared<std::shared_ptr<float>>();
    return [slab](size_t elements) {
      if (*slab == nullptr) *slab = AllocateSlab(elements);
      return *slab;
    };
  };
}

}  // namespace

std::vector<PlantedBug> PlantedInMemory() {
  return {
      {"unweighted mean", "a short part counts like a whole one", {Invariant::kComplete}, UnweightedMean},
      {"torn pull", "weights are written while they are being read", {Invariant::kTorn}, TornPull},
      {"view taken back",
       "memory that a client reads in place is used again when the client's time is over",
       {Invariant::kTorn},
       [](Site* site) { site->seams.takes_views_back = true; }},
      {"readers are waited for",
       "the next version waits until the old ones are let go, however long that takes",
       {Invariant::kProgress},
       [](Site* site) {
         site->seams.reader_limits.max_old = 1;
         site->seams.reader_limits.patience = absl::InfiniteDuration();
       }},
      {"newest version is waited for",
       "the next version waits until nobody reads the one before it",
       {Invariant::kProgress},
       [](Site* site) { site->seams.reader_limits.max_old = 0; }},
  };
}

}  // namespace weir
