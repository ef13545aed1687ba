#include "common/codec/value_codec.h"

#include <cstring>

#include "common/codec/floats.h"

namespace weir {

void Encode(v1::Dtype dtype, const float* values, void* out, size_t n) {
  if (dtype == v1::BF16) return ToBfloat16(values, out, n);
  std::memcpy(out, values, n * sizeof(float));
}

void Decode(v1::Dtype dtype, const void* in, float* values, size_t n) {
  if (dtype == v1::BF16) return FromBfloat16(in, values, n);
  std::memcpy(values, in, n * sizeof(float));
}

int64_t FirstNonFinite(v1::Dtype dtype, const float* values, int64_t n) {
  return dtype == v1::BF16 ? FirstNonFiniteBfloat16(values, n) : FirstNonFinite(values, n);
}

}  // namespace weir
