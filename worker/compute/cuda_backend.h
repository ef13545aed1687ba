#pragma once

#include <cstddef>
#include <memory>

#include "absl/status/statusor.h"
#include "worker/compute/compute_backend.h"

namespace weir::cuda {

// Device memory is taken in chunks of this size, or larger if one tensor needs more.
constexpr size_t kArenaChunkBytes = size_t{256} << 20;

// The backend of CUDA device `device`: cuBLAS for matrix products, kernels of its own (cuda_*.cu) for the
// rest, on one stream for compute and one for the copies in each direction. FailedPrecondition: the device
// cannot be used. InvalidArgument: there is no such device. ResourceExhausted: the device has no memory left.
absl::StatusOr<std::unique_ptr<ComputeBackend>> MakeBackend(int device, Precision precision,
                                                            size_t arena_chunk_bytes = kArenaChunkBytes);

}  // namespace weir::cuda
