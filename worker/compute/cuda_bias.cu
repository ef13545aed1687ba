#include "worker/compute/cuda_kernels.h"
#include "worker/compute/cuda_launch.h"
#include "worker/compute/cuda_reduce.h"

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

namespace {

// The first pass cuts the n examples into `splits` runs and sums each; the second adds the runs up in order.
// So the work spreads over the device and the order of the sums depends on the shape alone.
struct Split {
  int64_t examples;  // of a run
  int64_t splits;
};
Split SplitOf(int64_t n, int64_t positions) {
  constexpr int64_t kElements = 256;  // the least of one channel in a run; long runs have more
  constexpr int64_t kMostSplits = 64;
  const int64_t fewest = (n + kMostSplits - 1) / kMostSplits;
  const int64_t wanted = (kElements + positions - 1) / positions;
  const int64_t examples = fewest > wanted ? fewest : wanted;
  return {examples, (n + examples - 1) / examples};
}

constexpr int kColumns = 32, kRows = 16;  // of a block for positions = 1

// positions = 1: neighbouring threads take neighbouring channels, so that reads are whole lines.
__global__ void ColumnSumsKernel(int64_t n, int64_t channels, int64_t examples, const float* dy,
                                 float* partials) {
  __shared__ float sums[kRows][kColumns];
  const int64_t channel = FirstElement();
  const int64_t first = blockIdx.y * examples;
  const int64_t end = first + examples < n ? first + examples : n;
  float sum = 0;
  if (channel < channels) {
    for (int64_t i = first + threadIdx.y; i < end; i += kRows) sum += dy[i * channels + channel];
  }
  sums[threadIdx.y][threadIdx.x] = sum;
  __syncthreads();
  if (threadIdx.y != 0 || channel >= channels) return;
  for (int row = 1; row < kRows; ++row) sum += sums[row][threadIdx.x];
  partials[blockIdx.y * channels + channel] = sum;
}

// positions > 1: a block takes one channel of one run of images.
__global__ void PlaneSumsKernel(int64_t n, int64_t channels, int64_t positions, int64_t examples,
                                const float* dy, float* partials) {
  __shared__ float scratch[kThreads];
  const int64_t channel = blockIdx.x, first = blockIdx.y * examples;
  const int64_t end = first + examples < n ? first + examples : n;
  float sum = 0;
  for (int64_t i = first; i < end; ++i) {
    const float* plane = dy + (i * channels + channel) * positions;
    for (int64_t p = threadIdx.x; p < positions; p += blockDim.x) sum += plane[p];
  }
  sum = ReduceRow(sum, scratch, Sum());
  if (threadIdx.x == 0) partials[blockIdx.y * channels + channel] = sum;
}

__global__ void AddPartialsKernel(int64_t channels, int64_t splits, const float* partials, float* dbias) {
  for (int64_t c = FirstElement(); c < channels; c += ElementStep()) {
    float sum = 0;
    for (int64_t s = 0; s < splits; ++s) sum += partials[s * channels + c];
    dbias[c] += sum;
  }
}

}  // namespace

int64_t BiasGradientPartials(int64_t n, int64_t channels, int64_t positions) {
  return SplitOf(n, positions).splits * channels;
}

cudaError_t BiasGradient(cudaStream_t stream, int64_t n, int64_t channels, int64_t positions, const float* dy,
                         float* partials, float* dbias) {
  const Split split = SplitOf(n, positions);
  const unsigned splits = static_cast<unsigned>(split.splits);
  cudaError_t error;
  if (positions == 1) {
    const dim3 grid(static_cast<unsigned>((channels + kColumns - 1) / kColumns), splits);
    error = Launch(stream, grid, dim3(kColumns, kRows), ColumnSumsKernel, n, channels, split.examples, dy,
                   partials);
  } else {
    // No more threads than a plane has positions for.
    error = Launch(stream, dim3(static_cast<unsigned>(channels), splits), RowBlock(positions).x,
                   PlaneSumsKernel, n, channels, positions, split.examples, dy, partials);
  }
  if (error != cudaSuccess) return error;
  return Launch(stream, Blocks(channels), kThreads, AddPartialsKernel, channels, split.splits, partials,
                dbias);
}

}  // namespace weir::cuda
