#include "worker/compute/cuda_kernels.h"
#include "worker/compute/cuda_reduce.h"

namespace weir::cuda {
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
  const dim3 block = RowBlock(classes);
  return Launch(stream, RowGrid(n, block), block, ArgmaxKernel, n, classes, logits, indexes);
}

}  // namespace weir::cuda
