#pragma once

#include <cuda_runtime.h>

#include <functional>

#include "tests/worker/compute/cuda_emulation/emulation.h"

namespace emulated_cuda {

// For libraries over the emulated runtime.

const weir::cuda_emulation::Machine& CurrentMachine();

// Queues `work` in the stream's order.
cudaError_t QueueWork(cudaStream_t stream, std::function<cudaError_t()> work);

}  // namespace emulated_cuda
