#include "worker/compute/cuda_kernels.h"
#include "worker/compute/cuda_launch.h"

namespace weir::cuda {
namespace {

// Philox and UniformFloat of common/base/random.h, bit for bit.
struct Words {
  uint32_t word[4];
};

__device__ Words Philox(uint64_t key, uint64_t counter_high, uint64_t counter_low) {
  constexpr uint32_t kM0 = 0xD2511F53, kM1 = 0xCD9E8D57, kW0 = 0x9E3779B9, kW1 = 0xBB67AE85;
  uint32_t k0 = static_cast<uint32_t>(key), k1 = static_cast<uint32_t>(key >> 32);
  uint32_t c0 = static_cast<uint32_t>(counter_low), c1 = static_cast<uint32_t>(counter_low >> 32);
  uint32_t c2 = static_cast<uint32_t>(counter_high), c3 = static_cast<uint32_t>(counter_high >> 32);
  for (int round = 0; round < 10; ++round) {
    const uint64_t p0 = uint64_t{kM0} * c0, p1 = uint64_t{kM1} * c2;
    c0 = static_cast<uint32_t>(p1 >> 32) ^ c1 ^ k0;
    c2 = static_cast<uint32_t>(p0 >> 32) ^ c3 ^ k1;
    c1 = static_cast<uint32_t>(p1);
    c3 = static_cast<uint32_t>(p0);
    k0 += kW0;
    k1 += kW1;
  }
  return {{c0, c1, c2, c3}};
}

__device__ float UniformFloat(uint32_t bits) { return static_cast<float>(bits >> 8) * (1.0f / 16777216.0f); }

// A thread takes the four elements of one counter. y may be x.
__global__ void DropoutKernel(DropoutMask mask, int64_t n, const float* x, float* y) {
  const float scale = 1 / (1 - mask.rate);
  const int64_t first = mask.first_element / 4, end = (mask.first_element + n + 3) / 4;
  for (int64_t counter = first + FirstElement(); counter < end; counter += ElementStep()) {
    const Words words = Philox(mask.key, mask.counter, static_cast<uint64_t>(counter));
    for (int w = 0; w < 4; ++w) {
      const int64_t i = counter * 4 + w - mask.first_element;
      if (i < 0 || i >= n) continue;
      y[i] = UniformFloat(words.word[w]) < mask.rate ? 0 : x[i] * scale;
    }
  }
}

}  // namespace

cudaError_t Dropout(cudaStream_t stream, const DropoutMask& mask, int64_t n, const float* x, float* y) {
  if (mask.rate == 0) {
    if (y == x) return cudaSuccess;
    return cudaMemcpyAsync(y, x, static_cast<size_t>(n) * sizeof(float), cudaMemcpyDeviceToDevice, stream);
  }
  return Launch(stream, Blocks(n / 4 + 2), kThreads, DropoutKernel, mask, n, x, y);
}

}  // namespace weir::cuda
