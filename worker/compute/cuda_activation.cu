#include "worker/compute/cuda_kernels.h"
#include "worker/compute/cuda_launch.h"

namespace weir::cuda {
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

}  // namespace weir::cuda
