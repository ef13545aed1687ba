#pragma once

#include <cuda_runtime.h>

#include <algorithm>
#include <cstdint>

namespace weir::cuda {

// The code that all kernels share: how they are launched and how their threads find their elements. For .cu
// files.

constexpr int kThreads = 256;  // of a block

// All kernels are launched through this function. A grid without blocks is no work.
template <typename... Parameters, typename... Arguments>
cudaError_t Launch(cudaStream_t stream, dim3 grid, dim3 block, void (*kernel)(Parameters...),
                   Arguments... arguments) {
  if (grid.x == 0 || grid.y == 0) return cudaSuccess;
  cudaLaunchConfig_t config = {};
  config.gridDim = grid;
  config.blockDim = block;
  config.stream = stream;
  return cudaLaunchKernelEx(&config, kernel, static_cast<Parameters>(arguments)...);
}

// Blocks for n elements whose threads step by the grid's size: enough to fill any device several times over.
inline unsigned Blocks(int64_t n) {
  return static_cast<unsigned>(std::min<int64_t>((n + kThreads - 1) / kThreads, 8192));
}

// The second dimension of a grid whose blocks step by the grid's size.
inline unsigned GridRows(int64_t n) { return static_cast<unsigned>(std::min<int64_t>(n, 65535)); }

__device__ inline int64_t FirstElement() { return int64_t{blockIdx.x} * blockDim.x + threadIdx.x; }
__device__ inline int64_t ElementStep() { return int64_t{gridDim.x} * blockDim.x; }

}  // namespace weir::cuda
