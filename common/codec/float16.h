#pragma once

#include <cstddef>

namespace weir {

// float16 (IEEE 754 binary16) has a sign, 5 bits of exponent and 10 of fraction. Expands 2 n bytes,
// little-endian, at any address, exactly: every float16 is a float32, its subnormals too. A NaN keeps its
// payload. Thread-safe.
void FromFloat16(const void* in, float* out, size_t n);

}  // namespace weir
