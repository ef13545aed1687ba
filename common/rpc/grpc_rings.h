#pragma once

namespace weir {

inline constexpr char kExchangeMethod[] = "weir.v1.ParameterServer/Exchange";

// The metadata of an Exchange call whose messages travel over rings in shared memory: the client's
// SegmentToken, under which the server knows the rings (common/protocol/segment_messages.h).
inline constexpr char kRingsEntry[] = "weir-rings-bin";

}  // namespace weir
