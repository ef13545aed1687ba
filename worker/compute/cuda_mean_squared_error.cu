#include "worker/compute/cuda_kernels.h"
#include "worker/compute/cuda_reduce.h"

namespace weir::cuda {
namespace {

__global__ void MeanSquaredErrorKernel(int64_t n, int64_t outputs, const float* predictions,
                                       const float* targets, float gradient_scale, float* losses,
                                       float* dpredictions) {
  __shared__ float scratch[kThreads];
  const int64_t example = RowIndex();
  const int64_t end = example < n ? (example + 1) * outputs : 0;
  const float slope = gradient_scale * 2 / static_cast<float>(outputs);
  float sum = 0;
  for (int64_t i = example * outputs + threadIdx.x; i < end; i += blockDim.x) {
    const float difference = predictions[i] - targets[i];
    sum += difference * difference;
    if (dpredictions != nullptr) dpredictions[i] = slope * difference;
  }
  sum = ReduceRow(sum, scratch, Sum());
  if (example < n && threadIdx.x == 0) losses[example] = sum / static_cast<float>(outputs);
}

}  // namespace

cudaError_t MeanSquaredError(cudaStream_t stream, int64_t n, int64_t outputs, const float* predictions,
                             const float* targets, float gradient_scale, float* losses, float* dpredictions) {
  const dim3 block = RowBlock(outputs);
  return Launch(stream, RowGrid(n, block), block, MeanSquaredErrorKernel, n, outputs, predictions, targets,
                gradient_scale, losses, dpredictions);
}

}  // namespace weir::cuda
