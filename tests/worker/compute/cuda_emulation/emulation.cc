#include "tests/worker/compute/cuda_emulation/emulation.h"

#include "worker/compute/compute_backend.h"

namespace weir::cuda_emulation {

absl::StatusOr<std::unique_ptr<ComputeBackend>> MakeBackend(int device, Precision precision,
                                                            size_t arena_chunk_bytes) {
  return cuda::MakeBackend(device, precision, arena_chunk_bytes);
}

}  // namespace weir::cuda_emulation
