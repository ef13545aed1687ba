#include "worker/compute/cuda_kernels.h"
#include "worker/compute/cuda_launch.h"
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
  return LaunchRows(stream, n, classes, SoftmaxCrossEntropyKernel, logits, labels, gradient_scale, losses,
                    dlogits);
}

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
  return LaunchRows(stream, n, outputs, MeanSquaredErrorKernel, predictions, targets, gradient_scale, losses,
                    dpredictions);
}

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

namespace {

struct Candidate {
  float value;
  int32_t index;
};

struct Better {
  __device__ Candidate operator()(Candidate a, Candidate b) const {
    return b.value > a.value || (b.value == a.value && b.index < a.index) ? b : a;
  }
};

__global__ void ArgmaxKernel(int64_t n, int64_t classes, const float* logits, int32_t* indexes) {
  __shared__ Candidate scratch[kThreads];
  const int64_t example = RowIndex();
  const int64_t columns = example < n ? classes : 0;
  const float* row = logits + example * classes;
  // Threads without a class come last in the row, so that none of them comes before a class.
  Candidate best = {-INFINITY, INT32_MAX};
  if (threadIdx.x < columns) best = {row[threadIdx.x], static_cast<int32_t>(threadIdx.x)};
  for (int64_t c = int64_t{threadIdx.x} + blockDim.x; c < columns; c += blockDim.x) {
    best = Better()(best, {row[c], static_cast<int32_t>(c)});
  }
  best = ReduceRow(best, scratch, Better());
  if (example < n && threadIdx.x == 0) indexes[example] = best.index;
}

}  // namespace

cudaError_t Argmax(cudaStream_t stream, int64_t n, int64_t classes, const float* logits, int32_t* indexes) {
  return LaunchRows(stream, n, classes, ArgmaxKernel, logits, indexes);
}

}  // namespace weir::cuda
