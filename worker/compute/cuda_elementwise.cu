#include "worker/compute/cuda_kernels.h"
#include "worker/compute/cuda_launch.h"
#include "worker/compute/cuda_reduce.h"
#include "worker/compute/cuda_round.h"

namespace weir::cuda {
namespace {

__global__ void FillKernel(int64_t n, float value, float* x) {
  for (int64_t i = FirstElement(); i < n; i += ElementStep()) x[i] = value;
}

__global__ void ScaleKernel(int64_t n, float alpha, float* x) {
  for (int64_t i = FirstElement(); i < n; i += ElementStep()) x[i] *= alpha;
}

__global__ void AxpyKernel(int64_t n, float alpha, const float* __restrict__ x, float* __restrict__ y) {
  for (int64_t i = FirstElement(); i < n; i += ElementStep()) y[i] += alpha * x[i];
}

}  // namespace

cudaError_t Fill(cudaStream_t stream, int64_t n, float value, float* x) {
  return Launch(stream, Blocks(n), kThreads, FillKernel, n, value, x);
}

cudaError_t Scale(cudaStream_t stream, int64_t n, float alpha, float* x) {
  return Launch(stream, Blocks(n), kThreads, ScaleKernel, n, alpha, x);
}

cudaError_t Axpy(cudaStream_t stream, int64_t n, float alpha, const float* x, float* y) {
  return Launch(stream, Blocks(n), kThreads, AxpyKernel, n, alpha, x, y);
}

namespace {

constexpr float kGeluScale = 0.79788456080286536f;  // sqrt(2 / pi)
constexpr float kGeluCubic = 0.044715f;

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

}  // namespace

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

namespace {

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

}  // namespace

cudaError_t Dropout(cudaStream_t stream, const DropoutMask& mask, int64_t n, const float* x, float* y) {
  if (mask.rate == 0) {
    if (y == x) return cudaSuccess;
    return cudaMemcpyAsync(y, x, static_cast<size_t>(n) * sizeof(float), cudaMemcpyDeviceToDevice, stream);
  }
  return Launch(stream, Blocks(n / 4 + 2), kThreads, DropoutKernel, mask, n, x, y);
}

namespace {

__global__ void RoundToBfloat16Kernel(int64_t n, const float* __restrict__ x, uint16_t* __restrict__ y) {
  for (int64_t i = FirstElement(); i < n; i += ElementStep()) y[i] = RoundTo<uint16_t>(x[i]);
}

}  // namespace

cudaError_t RoundToBfloat16(cudaStream_t stream, int64_t n, const float* x, uint16_t* y) {
  return Launch(stream, Blocks(n), kThreads, RoundToBfloat16Kernel, n, x, y);
}

namespace {

constexpr int64_t kNone = INT64_MAX;  // ComputeBackend::kAllFinite

__global__ void ResetNonFiniteKernel(int64_t* found) { *found = kNone; }

__global__ void FindNonFiniteKernel(int64_t n, const float* x, int64_t first, int64_t* found) {
  __shared__ int64_t scratch[kThreads];
  int64_t smallest = kNone;
  for (int64_t i = FirstElement(); i < n; i += ElementStep()) {
    // NaN and infinity have an exponent of all ones.
    if ((__float_as_uint(x[i]) & 0x7f800000) == 0x7f800000) {
      smallest = first + i;
      break;
    }
  }
  smallest = ReduceRow(smallest, scratch, Smaller());
  // The smallest of integers does not depend on the order.
  if (threadIdx.x == 0 && smallest != kNone) {
    static_assert(sizeof(long long) == sizeof(int64_t));
    atomicMin(reinterpret_cast<long long*>(found), static_cast<long long>(smallest));
  }
}

}  // namespace

cudaError_t ResetNonFinite(cudaStream_t stream, int64_t* found) {
  return Launch(stream, 1, 1, ResetNonFiniteKernel, found);
}

cudaError_t FindNonFinite(cudaStream_t stream, int64_t n, const float* x, int64_t first, int64_t* found) {
  return Launch(stream, Blocks(n), kThreads, FindNonFiniteKernel, n, x, first, found);
}

}  // namespace weir::cuda
