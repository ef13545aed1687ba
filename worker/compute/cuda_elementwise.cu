#include "worker/compute/cuda_kernels.h"
#include "worker/compute/cuda_launch.h"

namespace weir::cuda {
// Not an anonymous one: for that nvcc makes names from the place of the source tree.
inline namespace elementwise {

__global__ void FillKernel(int64_t n, float value, float* x) {
  for (int64_t i = FirstElement(); i < n; i += ElementStep()) x[i] = value;
}

__global__ void AxpyKernel(int64_t n, float alpha, const float* __restrict__ x, float* __restrict__ y) {
  for (int64_t i = FirstElement(); i < n; i += ElementStep()) y[i] += alpha * x[i];
}

struct Relu {
  // Written so that NaN passes on.
  __device__ static float Value(float x) { return x < 0 ? 0 : x; }
  __device__ static float Gradient(float, float y, float dy) { return y > 0 ? dy : 0; }
};

struct Gelu {
  __device__ static float Tanh(float x) { return tanhf(kGeluScale * (x + kGeluCubic * x * x * x)); }
  __device__ static float Value(float x) { return 0.5f * x * (1 + Tanh(x)); }
  __device__ static float Gradient(float x, float, float dy) {
    const float t = Tanh(x), inner = kGeluScale * (1 + 3 * kGeluCubic * x * x);
    return dy * 0.5f * (1 + t + x * (1 - t * t) * inner);
  }
};

struct Tanh {
  __device__ static float Value(float x) { return tanhf(x); }
  __device__ static float Gradient(float, float y, float dy) { return dy * (1 - y * y); }
};

template <typename Kind>
__global__ void ActivationForwardKernel(int64_t n, const float* __restrict__ x, float* __restrict__ y) {
  for (int64_t i = FirstElement(); i < n; i += ElementStep()) y[i] = Kind::Value(x[i]);
}

// dx may be dy.
template <typename Kind>
__global__ void ActivationBackwardKernel(int64_t n, const float* __restrict__ x, const float* __restrict__ y,
                                         const float* dy, float* dx) {
  for (int64_t i = FirstElement(); i < n; i += ElementStep()) dx[i] = Kind::Gradient(x[i], y[i], dy[i]);
}

// Philox and UniformFloat of common/base/random.h, bit for bit.
struct Words {
  uint32_t word[4];
};

__device__ Words Philox(uint64_t key, uint64_t counter_high, uint64_t counter_low) {
  constexpr uint32_t kM0 = 0xD2511F53, kM1 = 0xCD9E8D57, kW0 = 0x9E3779B9, kW1 = 0xBB67AE85;
  uint32_t k0 = static_cast<uint32_t>(key), k1 = static_cast<uint32_t>(key >> 32);
  uint32_t c0 = static_cast<uint32_t>(counter_low), c1 = static_cast<uint32_t>(counter_low >> 32);
  uint32_t c2 = static_cast<uint32_t>(counter_high), c3 = static_cast<uint32_t>(counter_high >> 32);
  for (int round = 0; round < 10; ++round) {
    const uint64_t p0 = uint64_t{kM0} * c0, p1 = uint64_t{kM1} * c2;
    c0 = static_cast<uint32_t>(p1 >> 32) ^ c1 ^ k0;
    c2 = static_cast<uint32_t>(p0 >> 32) ^ c3 ^ k1;
    c1 = static_cast<uint32_t>(p1);
    c3 = static_cast<uint32_t>(p0);
    k0 += kW0;
    k1 += kW1;
  }
  return {{c0, c1, c2, c3}};
}

__device__ float UniformFloat(uint32_t bits) { return static_cast<float>(bits >> 8) * (1.0f / 16777216.0f); }

// A thread takes the four elements of one counter. y may be x.
__global__ void DropoutKernel(DropoutMask mask, int64_t n, const float* x, float* y) {
  const float scale = 1 / (1 - mask.rate);
  const int64_t first = mask.first_element / 4, end = (mask.first_element + n + 3) / 4;
  for (int64_t counter = first + FirstElement(); counter < end; counter += ElementStep()) {
    const Words words = Philox(mask.key, mask.counter, static_cast<uint64_t>(counter));
    for (int w = 0; w < 4; ++w) {
      const int64_t i = counter * 4 + w - mask.first_element;
      if (i < 0 || i >= n) continue;
      y[i] = UniformFloat(words.word[w]) < mask.rate ? 0 : x[i] * scale;
    }
  }
}

__global__ void RoundToBfloat16Kernel(int64_t n, const float* __restrict__ x, uint16_t* __restrict__ y) {
  for (int64_t i = FirstElement(); i < n; i += ElementStep()) y[i] = RoundTo<uint16_t>(x[i]);
}

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

}  // namespace elementwise

cudaError_t Fill(cudaStream_t stream, int64_t n, float value, float* x) {
  return Launch(stream, Blocks(n), kThreads, FillKernel, n, value, x);
}

cudaError_t Axpy(cudaStream_t stream, int64_t n, float alpha, const float* x, float* y) {
  return Launch(stream, Blocks(n), kThreads, AxpyKernel, n, alpha, x, y);
}

cudaError_t ActivationForward(cudaStream_t stream, Activation kind, int64_t n, const float* x, float* y) {
  const auto kernel = kind == Activation::kRelu   ? ActivationForwardKernel<Relu>
                      : kind == Activation::kGelu ? ActivationForwardKernel<Gelu>
                                                  : ActivationForwardKernel<Tanh>;
  return Launch(stream, Blocks(n), kThreads, kernel, n, x, y);
}

cudaError_t ActivationBackward(cudaStream_t stream, Activation kind, int64_t n, const float* x,
                               const float* y, const float* dy, float* dx) {
  const auto kernel = kind == Activation::kRelu   ? ActivationBackwardKernel<Relu>
                      : kind == Activation::kGelu ? ActivationBackwardKernel<Gelu>
                                                  : ActivationBackwardKernel<Tanh>;
  return Launch(stream, Blocks(n), kThreads, kernel, n, x, y, dy, dx);
}

cudaError_t Dropout(cudaStream_t stream, const DropoutMask& mask, int64_t n, const float* x, float* y) {
  if (mask.rate == 0) {
    if (y == x) return cudaSuccess;
    return cudaMemcpyAsync(y, x, static_cast<size_t>(n) * sizeof(float), cudaMemcpyDeviceToDevice, stream);
  }
  return Launch(stream, Blocks(n / 4 + 2), kThreads, DropoutKernel, mask, n, x, y);
}

cudaError_t RoundToBfloat16(cudaStream_t stream, int64_t n, const float* x, uint16_t* y) {
  return Launch(stream, Blocks(n), kThreads, RoundToBfloat16Kernel, n, x, y);
}

cudaError_t AddBias(cudaStream_t stream, int64_t rows, int64_t columns, const float* bias, float* x) {
  // Two rows per thread.
  const dim3 block(64, kThreads / 64);
  const dim3 grid(static_cast<unsigned>((columns + block.x - 1) / block.x),
                  GridRows((rows + 2 * block.y - 1) / (2 * block.y)));
  return Launch(stream, grid, block, AddBiasKernel, rows, columns, bias, x);
}

}  // namespace weir::cuda
