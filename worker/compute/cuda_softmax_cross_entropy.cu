#include "worker/compute/cuda_kernels.h"
#include "worker/compute/cuda_reduce.h"

namespace weir::cuda {
namespace {

__global__ void SoftmaxCrossEntropyKernel(int64_t n, int64_t classes, const float* logits,
                                          const int32_t* labels, float gradient_scale, float* losses,
                                          float* dlogits) {
  __shared__ float scratch[kThreads];
  const int64_t example = RowIndex();
  const int64_t columns = example < n ? classes : 0;
  const float* row = logits + example * classes;

  float largest = -INFINITY;
  for (int64_t c = threadIdx.x; c < columns; c += blockDim.x) largest = fmaxf(largest, row[c]);
  largest = ReduceRow(largest, scratch, Larger());
  float sum = 0;
  for (int64_t c = threadIdx.x; c < columns; c += blockDim.x) sum += expf(row[c] - largest);
  sum = ReduceRow(sum, scratch, Sum());
  if (example >= n) return;

  const int32_t label = labels[example];
  if (threadIdx.x == 0) losses[example] = logf(sum) - (row[label] - largest);
  if (dlogits == nullptr) return;
  const float scale = gradient_scale / sum;
  for (int64_t c = threadIdx.x; c < columns; c += blockDim.x) {
    dlogits[example * classes + c] = expf(row[c] - largest) * scale - (c == label ? gradient_scale : 0);
  }
}

}  // namespace

cudaError_t SoftmaxCrossEntropy(cudaStream_t stream, int64_t n, int64_t classes, const float* logits,
                                const int32_t* labels, float gradient_scale, float* losses, float* dlogits) {
  const dim3 block = RowBlock(classes);
  return Launch(stream, RowGrid(n, block), block, SoftmaxCrossEntropyKernel, n, classes, logits, labels,
                gradient_scale, losses, dlogits);
}

}  // namespace weir::cuda
