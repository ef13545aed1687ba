#pragma once

#include <cstddef>

#include "nlohmann/json.hpp"

namespace weir::bench {

// Prints how fast one thread encodes (with error feedback too) and decodes `elements` float32 in each
// quantised type, and in bfloat16, beside memcpy of the same floats: data in memory, and 1 MiB in cache. By
// the thread's CPU time; the best of `rounds` counts. Returns the rows.
nlohmann::json CodecTable(size_t elements, int rounds);

}  // namespace weir::bench
