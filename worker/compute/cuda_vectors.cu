#include "worker/compute/cuda_kernels.h"
#include "worker/compute/cuda_launch.h"

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

}  // namespace weir::cuda
