#include "worker/compute/cuda_kernels.h"
#include "worker/compute/cuda_launch.h"

namespace weir::cuda {
// Not an anonymous one: for that nvcc makes names from the place of the source tree.
inline namespace reductions {

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

// The first pass cuts the n examples into `splits` runs and sums each; the second adds the runs up in order.
// So the work spreads over the device and the order of the sums depends on the shape alone.
struct Split {
  int64_t examples;  // of a run
  int64_t splits;
};
Split SplitOf(int64_t n, int64_t positions) {
  constexpr int64_t kElements = 256;  // the least of one channel in a run; long runs have more
  constexpr int64_t kMostSplits = 64;
  const int64_t fewest = (n + kMostSplits - 1) / kMostSplits;
  const int64_t wanted = (kElements + positions - 1) / positions;
  const int64_t examples = fewest > wanted ? fewest : wanted;
  return {examples, (n + examples - 1) / examples};
}

constexpr int kColumns = 32, kRows = 16;  // of a block for positions = 1

// positions = 1: neighbouring threads take neighbouring channels, so that reads are whole lines.
__global__ void ColumnSumsKernel(int64_t n, int64_t channels, int64_t examples, const float* dy,
                                 float* partials) {
  __shared__ float sums[kRows][kColumns];
  const int64_t channel = FirstElement();
  const int64_t first = blockIdx.y * examples;
  const int64_t end = first + examples < n ? first + examples : n;
  float sum = 0;
  if (channel < channels) {
    for (int64_t i = first + threadIdx.y; i < end; i += kRows) sum += dy[i * channels + channel];
  }
  sums[threadIdx.y][threadIdx.x] = sum;
  __syncthreads();
  if (threadIdx.y != 0 || channel >= channels) return;
  for (int row = 1; row < kRows; ++row) sum += sums[row][threadIdx.x];
  partials[blockIdx.y * channels + channel] = sum;
}

// positions > 1: a block takes one channel of one run of images.
__global__ void PlaneSumsKernel(int64_t n, int64_t channels, int64_t positions, int64_t examples,
                                const float* dy, float* partials) {
  __shared__ float scratch[kThreads];
  const int64_t channel = blockIdx.x, first = blockIdx.y * examples;
  const int64_t end = first + examples < n ? first + examples : n;
  float sum = 0;
  for (int64_t i = first; i < end; ++i) {
    const float* plane = dy + (i * channels + channel) * positions;
    for (int64_t p = threadIdx.x; p < positions; p += blockDim.x) sum += plane[p];
  }
  sum = ReduceRow(sum, scratch, Sum());
  if (threadIdx.x == 0) partials[blockIdx.y * channels + channel] = sum;
}

__global__ void AddPartialsKernel(int64_t channels, int64_t splits, const float* partials, float* dbias) {
  for (int64_t c = FirstElement(); c < channels; c += ElementStep()) {
    float sum = 0;
    for (int64_t s = 0; s < splits; ++s) sum += partials[s * channels + c];
    dbias[c] += sum;
  }
}

}  // namespace reductions

cudaError_t SoftmaxCrossEntropy(cudaStream_t stream, int64_t n, int64_t classes, const float* logits,
                                const int32_t* labels, float gradient_scale, float* losses, float* dlogits) {
  return LaunchRows(stream, n, classes, SoftmaxCrossEntropyKernel, logits, labels, gradient_scale, losses,
                    dlogits);
}

cudaError_t MeanSquaredError(cudaStream_t stream, int64_t n, int64_t outputs, const float* predictions,
                             const float* targets, float gradient_scale, float* losses, float* dpredictions) {
  return LaunchRows(stream, n, outputs, MeanSquaredErrorKernel, predictions, targets, gradient_scale, losses,
                    dpredictions);
}

cudaError_t SigmoidCrossEntropy(cudaStream_t stream, int64_t n, const float* logits, const float* targets,
                                float gradient_scale, float* losses, float* dlogits) {
  return Launch(stream, Blocks(n), kThreads, SigmoidCrossEntropyKernel, n, logits, targets, gradient_scale,
                losses, dlogits);
}

cudaError_t Argmax(cudaStream_t stream, int64_t n, int64_t classes, const float* logits, int32_t* indexes) {
  return LaunchRows(stream, n, classes, ArgmaxKernel, logits, indexes);
}

int64_t BiasGradientPartials(int64_t n, int64_t channels, int64_t positions) {
  return SplitOf(n, positions).splits * channels;
}

cudaError_t BiasGradient(cudaStream_t stream, int64_t n, int64_t channels, int64_t positions, const float* dy,
                         float* partials, float* dbias) {
  const Split split = SplitOf(n, positions);
  const unsigned splits = static_cast<unsigned>(split.splits);
  cudaError_t error;
  if (positions == 1) {
    const dim3 grid(static_cast<unsigned>((channels + kColumns - 1) / kColumns), splits);
    error = Launch(stream, grid, dim3(kColumns, kRows), ColumnSumsKernel, n, channels, split.examples, dy,
                   partials);
  } else {
    // No more threads than a plane has positions for.
    error = Launch(stream, dim3(static_cast<unsigned>(channels), splits), RowBlock(positions).x,
                   PlaneSumsKernel, n, channels, positions, split.examples, dy, partials);
  }
  if (error != cudaSuccess) return error;
  return Launch(stream, Blocks(channels), kThreads, AddPartialsKernel, channels, split.splits, partials,
                dbias);
}

}  // namespace weir::cuda
