#pragma once

#include <cstdint>

namespace weir {

// The position of the first NaN or infinity among n values; n if all are finite. As fast as memory can be
// read. May read a value twice. Thread-safe.
int64_t FirstNonFinite(const float* values, int64_t n);
// FirstNonFinite() of float32 values at any address.
int64_t FirstNonFiniteAt(const void* float32, int64_t n);
// FirstNonFinite() of bfloat16 values.
int64_t FirstNonFinite(const uint16_t* bfloat16, int64_t n);
// FirstNonFinite() of float32 values, where a value that bfloat16 rounds to infinity counts as infinite.
int64_t FirstNonFiniteBfloat16(const float* values, int64_t n);

}  // namespace weir
