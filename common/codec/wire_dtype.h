#pragma once

#include <cstdint>

#include "proto/parameter_server.pb.h"

namespace weir {

// The size of one value on the wire.
constexpr int64_t BytesPerValue(v1::Dtype dtype) { return dtype == v1::BF16 ? 2 : 4; }

}  // namespace weir
