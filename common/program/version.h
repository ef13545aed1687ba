#pragma once

namespace weir {

// Of all programs of Weir. What they speak with each other has a version of its own (protocol_version.h).
inline constexpr char kVersion[] = "0.1.0";

}  // namespace weir
