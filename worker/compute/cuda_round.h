#pragma once

#include <cuda_runtime.h>

#include <cstdint>

namespace weir::cuda {

// The bits of `value` as a T: float itself, or uint16_t for bfloat16, rounded to nearest even, NaN kept and
// made quiet, as in common/codec/bfloat16.h. For .cu files.
template <typename T>
__device__ T RoundTo(float value);

template <>
__device__ inline float RoundTo<float>(float value) {
  return value;
}

template <>
__device__ inline uint16_t RoundTo<uint16_t>(float value) {
  const uint32_t bits = __float_as_uint(value);
  const uint32_t rounded = bits + 0x7fff + ((bits >> 16) & 1);
  const uint32_t quiet = bits | 0x00400000;
  return static_cast<uint16_t>(((bits & 0x7fffffff) > 0x7f800000 ? quiet : rounded) >> 16);
}

}  // namespace weir::cuda
