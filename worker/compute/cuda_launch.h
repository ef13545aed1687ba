#pragma once

#include <cuda_runtime.h>

#include <algorithm>
#include <cstdint>

#include "worker/compute/operations.h"

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

// Reductions within a block, in an order that the block's shape alone decides.

struct Sum {
  template <typename T>
  __device__ T operator()(T a, T b) const {
    return a + b;
  }
};
struct Larger {
  __device__ float operator()(float a, float b) const { return fmaxf(a, b); }
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

// The bits of `value` as a T: float itself, or uint16_t for bfloat16, rounded to nearest even, NaN kept and
// made quiet, as in common/codec/floats.h.
template <typename T>
__device__ T RoundTo(float value);

template <>
__device__ inline float RoundTo<float>(float value) {
  return value;
}

template <>
__device__ inline uint16_t RoundTo<uint16_t>(float value) {
  const uint32_t bits = __float_as_uint(value);
  const uint32_t rounded = bits + 0x7fff + ((bits >> 16) & 1);
  const uint32_t quiet = bits | 0x00400000;
  return static_cast<uint16_t>(((bits & 0x7fffffff) > 0x7f800000 ? quiet : rounded) >> 16);
}

// A Window in 32 bits, in which a GPU divides much faster than in 64.
struct Shape {
  explicit Shape(const Window& w)
      : channels(static_cast<int>(w.channels)),
        height(static_cast<int>(w.height)),
        width(static_cast<int>(w.width)),
        kernel(static_cast<int>(w.kernel)),
        stride(static_cast<int>(w.stride)),
        padding(static_cast<int>(w.padding)),
        out_height(static_cast<int>(w.out_height())),
        out_width(static_cast<int>(w.out_width())) {}

  int channels, height, width, kernel, stride, padding, out_height, out_width;
};

// The number of images for which all indexes fit into 32 bits; one image has fewer than 2^30 elements.
inline int64_t ImagesOfLaunch(const Window& w) {
  const int64_t elements = w.channels * std::max(w.height * w.width, w.out_height() * w.out_width());
  return std::max<int64_t>(1, (int64_t{1} << 30) / elements);
}

}  // namespace weir::cuda
