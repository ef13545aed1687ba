#include "worker/compute/cuda_kernels.h"
#include "worker/compute/cuda_launch.h"
#include "worker/compute/cuda_round.h"

namespace weir::cuda {
namespace {

// A row of blocks takes one channel of all images.
template <typename T>
__global__ void SideBySideKernel(int n, int channels, int positions, const float* __restrict__ x,
                                 T* __restrict__ out) {
  const int columns = n * positions;
  for (int c = static_cast<int>(blockIdx.y); c < channels; c += static_cast<int>(gridDim.y)) {
    for (int64_t i = FirstElement(); i < columns; i += ElementStep()) {
      const int image = static_cast<int>(i) / positions, p = static_cast<int>(i) % positions;
      out[int64_t{c} * columns + i] = RoundTo<T>(x[(int64_t{image} * channels + c) * positions + p]);
    }
  }
}

__global__ void ToImagesKernel(int n, int channels, int positions, const float* __restrict__ x,
                               const float* __restrict__ bias, float* __restrict__ y) {
  const int columns = n * positions;
  for (int c = static_cast<int>(blockIdx.y); c < channels; c += static_cast<int>(gridDim.y)) {
    const float added = bias[c];
    for (int64_t i = FirstElement(); i < columns; i += ElementStep()) {
      const int image = static_cast<int>(i) / positions, p = static_cast<int>(i) % positions;
      y[(int64_t{image} * channels + c) * positions + p] = x[int64_t{c} * columns + i] + added;
    }
  }
}

}  // namespace

template <typename T>
cudaError_t SideBySide(cudaStream_t stream, int64_t n, int64_t channels, int64_t positions, const float* x,
                       T* out) {
  return Launch(stream, dim3(Blocks(n * positions), GridRows(channels)), kThreads, SideBySideKernel<T>, n,
                channels, positions, x, out);
}

template cudaError_t SideBySide<float>(cudaStream_t, int64_t, int64_t, int64_t, const float*, float*);
template cudaError_t SideBySide<uint16_t>(cudaStream_t, int64_t, int64_t, int64_t, const float*, uint16_t*);

cudaError_t ToImages(cudaStream_t stream, int64_t n, int64_t channels, int64_t positions, const float* x,
                     const float* bias, float* y) {
  return Launch(stream, dim3(Blocks(n * positions), GridRows(channels)), kThreads, ToImagesKernel, n,
                channels, positions, x, bias, y);
}

}  // namespace weir::cuda
