#pragma once

namespace weir {

// The version of all programs of Weir. Their protocol has a version of its own (protocol_version.h).
inline constexpr char kVersion[] = "0.1.0";

}  // namespace weir
