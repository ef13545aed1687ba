#include "worker/compute/cuda_kernels.h"
#include "worker/compute/cuda_launch.h"
#include "worker/compute/cuda_round.h"
#include "worker/compute/cuda_window.h"

namespace weir::cuda {
namespace {

// A row of blocks takes one tap of the kernel, so that the tap is divided by the window's sizes once.
template <typename T>
__global__ void Im2ColKernel(Shape w, int n, const float* __restrict__ x, T* __restrict__ column) {
  const int positions = w.out_height * w.out_width, columns = n * positions;
  const int area = w.kernel * w.kernel, taps = w.channels * area;
  for (int tap = static_cast<int>(blockIdx.y); tap < taps; tap += static_cast<int>(gridDim.y)) {
    const int channel = tap / area;
    const int ky = tap % area / w.kernel - w.padding, kx = tap % w.kernel - w.padding;
    for (int64_t i = FirstElement(); i < columns; i += ElementStep()) {
      const int image = static_cast<int>(i) / positions, p = static_cast<int>(i) % positions;
      const int iy = p / w.out_width * w.stride + ky, ix = p % w.out_width * w.stride + kx;
      const bool inside = iy >= 0 && iy < w.height && ix >= 0 && ix < w.width;
      const float value =
          inside ? x[((int64_t{image} * w.channels + channel) * w.height + iy) * w.width + ix] : 0;
      column[int64_t{tap} * columns + i] = RoundTo<T>(value);
    }
  }
}

}  // namespace

template <typename T>
cudaError_t Im2Col(cudaStream_t stream, const Window& window, int64_t n, const float* x, T* column) {
  const dim3 grid(Blocks(n * window.out_height() * window.out_width()),
                  GridRows(window.channels * window.kernel * window.kernel));
  return Launch(stream, grid, kThreads, Im2ColKernel<T>, Shape(window), n, x, column);
}

template cudaError_t Im2Col<float>(cudaStream_t, const Window&, int64_t, const float*, float*);
template cudaError_t Im2Col<uint16_t>(cudaStream_t, const Window&, int64_t, const float*, uint16_t*);

}  // namespace weir::cuda
