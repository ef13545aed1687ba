#include "worker/compute/cuda_kernels.h"
#include "worker/compute/cuda_reduce.h"

namespace weir::cuda {
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
