#include "worker/compute/cuda_kernels.h"
#include "worker/compute/cuda_launch.h"

namespace weir::cuda {
namespace {

__global__ void AddBiasKernel(int64_t rows, int64_t columns, const float* __restrict__ bias,
                              float* __restrict__ x) {
  const int64_t column = FirstElement();
  if (column >= columns) return;
  const float value = bias[column];
  const int64_t step = int64_t{gridDim.y} * blockDim.y;
  for (int64_t row = int64_t{blockIdx.y} * blockDim.y + threadIdx.y; row < rows; row += step) {
    x[row * columns + column] += value;
  }
}

}  // namespace

cudaError_t AddBias(cudaStream_t stream, int64_t rows, int64_t columns, const float* bias, float* x) {
  // Two rows per thread.
  const dim3 block(64, kThreads / 64);
  const dim3 grid(static_cast<unsigned>((columns + block.x - 1) / block.x),
                  GridRows((rows + 2 * block.y - 1) / (2 * block.y)));
  return Launch(stream, grid, block, AddBiasKernel, rows, columns, bias, x);
}

}  // namespace weir::cuda
