#include "worker/compute/cuda_kernels.h"
#include "worker/compute/cuda_launch.h"
#include "worker/compute/cuda_round.h"

namespace weir::cuda {
namespace {

__global__ void RoundToBfloat16Kernel(int64_t n, const float* __restrict__ x, uint16_t* __restrict__ y) {
  for (int64_t i = FirstElement(); i < n; i += ElementStep()) y[i] = RoundTo<uint16_t>(x[i]);
}

}  // namespace

cudaError_t RoundToBfloat16(cudaStream_t stream, int64_t n, const float* x, uint16_t* y) {
  return Launch(stream, Blocks(n), kThreads, RoundToBfloat16Kernel, n, x, y);
}

}  // namespace weir::cuda
