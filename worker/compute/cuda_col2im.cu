#include "worker/compute/cuda_kernels.h"
#include "worker/compute/cuda_launch.h"
#include "worker/compute/cuda_window.h"

namespace weir::cuda {
namespace {

// Each element of an image gathers what the windows over it hold, in a fixed order and without atomics.
__global__ void Col2ImKernel(Shape w, int n, const float* __restrict__ column, float* __restrict__ dx) {
  const int positions = w.out_height * w.out_width;
  const int64_t columns = int64_t{n} * positions;
  const int elements = n * w.channels * w.height * w.width;
  for (int64_t e = FirstElement(); e < elements; e += ElementStep()) {
    int rest = static_cast<int>(e);
    const int x = rest % w.width + w.padding;
    rest /= w.width;
    const int y = rest % w.height + w.padding;
    rest /= w.height;
    const int channel = rest % w.channels, image = rest / w.channels;
    // The outputs whose windows hold the element: out * stride <= position < out * stride + kernel.
    const int first_y = y < w.kernel ? 0 : (y - w.kernel) / w.stride + 1;
    const int first_x = x < w.kernel ? 0 : (x - w.kernel) / w.stride + 1;
    const int last_y = min(y / w.stride, w.out_height - 1), last_x = min(x / w.stride, w.out_width - 1);
    float sum = 0;
    for (int oy = first_y; oy <= last_y; ++oy) {
      for (int ox = first_x; ox <= last_x; ++ox) {
        const int ky = y - oy * w.stride, kx = x - ox * w.stride;
        const int64_t tap = (int64_t{channel} * w.kernel + ky) * w.kernel + kx;
        sum += column[tap * columns + int64_t{image} * positions + oy * w.out_width + ox];
      }
    }
    dx[e] = sum;
  }
}

}  // namespace

cudaError_t Col2Im(cudaStream_t stream, const Window& window, int64_t n, const float* column, float* dx) {
  return Launch(stream, Blocks(n * window.channels * window.height * window.width), kThreads, Col2ImKernel,
                Shape(window), n, column, dx);
}

}  // namespace weir::cuda
