#pragma once

#include <cstdint>
#include <cstdlib>

#include "proto/parameter_server.pb.h"

namespace weir {

// The size of one value on the wire. `dtype`: a type that Weir knows; others are refused where messages and
// configs are read.
constexpr int64_t BytesPerValue(v1::Dtype dtype) {
  static_assert(v1::Dtype_MAX == v1::BF16, "a new type of values needs its size here (docs/architecture.md)");
  if (dtype == v1::F32) return 4;
  if (dtype == v1::BF16) return 2;
  std::abort();
}

}  // namespace weir
