#include "worker/compute/cuda_kernels.h"
#include "worker/compute/cuda_launch.h"

namespace weir::cuda {
namespace {

__global__ void SigmoidCrossEntropyKernel(int64_t n, const float* logits, const float* targets,
                                          float gradient_scale, float* losses, float* dlogits) {
  for (int64_t i = FirstElement(); i < n; i += ElementStep()) {
    const float x = logits[i], small = expf(-fabsf(x));            // at most 1
    losses[i] = (x < 0 ? 0 : x) - x * targets[i] + log1pf(small);  // NaN passes on
    if (dlogits == nullptr) continue;
    const float sigmoid = (x < 0 ? small : 1) / (1 + small);
    dlogits[i] = gradient_scale * (sigmoid - targets[i]);
  }
}

}  // namespace

cudaError_t SigmoidCrossEntropy(cudaStream_t stream, int64_t n, const float* logits, const float* targets,
                                float gradient_scale, float* losses, float* dlogits) {
  return Launch(stream, Blocks(n), kThreads, SigmoidCrossEntropyKernel, n, logits, targets, gradient_scale,
                losses, dlogits);
}

}  // namespace weir::cuda
