#include "worker/compute/cuda_kernels.h"
#include "worker/compute/cuda_launch.h"
#include "worker/compute/cuda_window.h"

namespace weir::cuda {
namespace {

__global__ void MaxPoolForwardKernel(Shape w, int planes, const float* __restrict__ x, float* __restrict__ y,
                                     int32_t* __restrict__ argmax) {
  const int outputs = planes * w.out_height * w.out_width;
  for (int64_t e = FirstElement(); e < outputs; e += ElementStep()) {
    int rest = static_cast<int>(e);
    const int left = rest % w.out_width * w.stride;
    rest /= w.out_width;
    const int top = rest % w.out_height * w.stride;
    const float* plane = x + int64_t{rest / w.out_height} * w.height * w.width;
    int where = top * w.width + left;
    float largest = plane[where];
    for (int ky = 0; ky < w.kernel; ++ky) {
      for (int kx = 0; kx < w.kernel; ++kx) {
        const int at = (top + ky) * w.width + left + kx;
        const float value = plane[at];
        // The first NaN counts as larger than the values before it, and nothing is larger than that NaN.
        if (value > largest || (isnan(value) && !isnan(largest))) {
          largest = value;
          where = at;
        }
      }
    }
    y[e] = largest;
    argmax[e] = where;
  }
}

// Each input gathers from the windows over it, in a fixed order and without atomics.
__global__ void MaxPoolBackwardKernel(Shape w, int planes, const float* __restrict__ dy,
                                      const int32_t* __restrict__ argmax, float* __restrict__ dx) {
  const int inputs = planes * w.height * w.width;
  for (int64_t e = FirstElement(); e < inputs; e += ElementStep()) {
    int rest = static_cast<int>(e);
    const int x = rest % w.width;
    rest /= w.width;
    const int y = rest % w.height;
    const int64_t plane = int64_t{rest / w.height} * w.out_height * w.out_width;
    const int first_y = y < w.kernel ? 0 : (y - w.kernel) / w.stride + 1;
    const int first_x = x < w.kernel ? 0 : (x - w.kernel) / w.stride + 1;
    const int last_y = min(y / w.stride, w.out_height - 1), last_x = min(x / w.stride, w.out_width - 1);
    float sum = 0;
    for (int oy = first_y; oy <= last_y; ++oy) {
      for (int ox = first_x; ox <= last_x; ++ox) {
        const int64_t at = plane + oy * w.out_width + ox;
        if (argmax[at] == y * w.width + x) sum += dy[at];
      }
    }
    dx[e] = sum;
  }
}

// Calls launch(first image, planes) until all n images are done.
template <typename LaunchSome>
cudaError_t ForImages(const Window& w, int64_t n, const LaunchSome& launch) {
  const int64_t most = ImagesOfLaunch(w);
  for (int64_t first = 0; first < n; first += most) {
    const cudaError_t error = launch(first, std::min(most, n - first) * w.channels);
    if (error != cudaSuccess) return error;
  }
  return cudaSuccess;
}

}  // namespace

cudaError_t MaxPoolForward(cudaStream_t stream, const Window& w, int64_t n, const float* x, float* y,
                           int32_t* argmax) {
  const int64_t inputs = w.channels * w.height * w.width;
  const int64_t positions = w.out_height() * w.out_width(), outputs = w.channels * positions;
  return ForImages(w, n, [&](int64_t first, int64_t planes) {
    return Launch(stream, Blocks(planes * positions), kThreads, MaxPoolForwardKernel, Shape(w), planes,
                  x + first * inputs, y + first * outputs, argmax + first * outputs);
  });
}

cudaError_t MaxPoolBackward(cudaStream_t stream, const Window& w, int64_t n, const float* dy,
                            const int32_t* argmax, float* dx) {
  const int64_t plane = w.height * w.width, inputs = w.channels * plane;
  const int64_t outputs = w.channels * w.out_height() * w.out_width();
  return ForImages(w, n, [&](int64_t first, int64_t planes) {
    return Launch(stream, Blocks(planes * plane), kThreads, MaxPoolBackwardKernel, Shape(w), planes,
                  dy + first * outputs, argmax + first * outputs, dx + first * inputs);
  });
}

}  // namespace weir::cuda
