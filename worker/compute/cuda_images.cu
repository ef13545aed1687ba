#include "worker/compute/cuda_kernels.h"
#include "worker/compute/cuda_launch.h"

namespace weir::cuda {
// Not an anonymous one: for that nvcc makes names from the place of the source tree.
inline namespace images {

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

}  // namespace images

template <typename T>
cudaError_t Im2Col(cudaStream_t stream, const Window& window, int64_t n, const float* x, T* column) {
  const dim3 grid(Blocks(n * window.out_height() * window.out_width()),
                  GridRows(window.channels * window.kernel * window.kernel));
  return Launch(stream, grid, kThreads, Im2ColKernel<T>, Shape(window), n, x, column);
}

template cudaError_t Im2Col<float>(cudaStream_t, const Window&, int64_t, const float*, float*);
template cudaError_t Im2Col<uint16_t>(cudaStream_t, const Window&, int64_t, const float*, uint16_t*);

cudaError_t Col2Im(cudaStream_t stream, const Window& window, int64_t n, const float* column, float* dx) {
  return Launch(stream, Blocks(n * window.channels * window.height * window.width), kThreads, Col2ImKernel,
                Shape(window), n, column, dx);
}

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
