#pragma once

#include "worker/compute/cuda_launch.h"

namespace weir::cuda {

// Reductions within a block, in an order that the block's shape alone decides. For .cu files.

struct Sum {
  template <typename T>
  __device__ T operator()(T a, T b) const {
    return a + b;
  }
};
struct Larger {
  __device__ float operator()(float a, float b) const { return fmaxf(a, b); }
};
struct Smaller {
  __device__ int64_t operator()(int64_t a, int64_t b) const { return b < a ? b : a; }
};

// Combines the values of the threads that share a threadIdx.y, in a tree over threadIdx.x, and gives each of
// them the result. blockDim.x is a power of two; `scratch` is shared memory of one T per thread. All threads
// of the block must make the call.
template <typename T, typename Combine>
__device__ T ReduceRow(T value, T* scratch, Combine combine) {
  T* row = scratch + threadIdx.y * blockDim.x;
  __syncthreads();  // all threads have read the result of the reduction before
  row[threadIdx.x] = value;
  __syncthreads();
  for (unsigned half = blockDim.x / 2; half > 0; half /= 2) {
    if (threadIdx.x < half) row[threadIdx.x] = combine(row[threadIdx.x], row[threadIdx.x + half]);
    __syncthreads();
  }
  return row[0];
}

// A block in which each row of threads takes one row of `columns` elements: short rows share a block.
inline dim3 RowBlock(int64_t columns) {
  unsigned lanes = 1;
  while (lanes < columns && lanes < kThreads) lanes *= 2;
  return dim3(lanes, kThreads / lanes);
}
// Launches a kernel of such blocks, whose first parameters are `rows` and `columns`.
template <typename... Parameters, typename... Arguments>
cudaError_t LaunchRows(cudaStream_t stream, int64_t rows, int64_t columns, void (*kernel)(Parameters...),
                       Arguments... arguments) {
  const dim3 block = RowBlock(columns);
  const dim3 grid(static_cast<unsigned>((rows + block.y - 1) / block.y));
  return Launch(stream, grid, block, kernel, rows, columns, arguments...);
}
// The thread's row. Rows beyond the last take part in reductions only.
__device__ inline int64_t RowIndex() { return int64_t{blockIdx.x} * blockDim.y + threadIdx.y; }

}  // namespace weir::cuda
