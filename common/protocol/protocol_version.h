#pragma once

#include <string>

#include "absl/status/status.h"
#include "absl/strings/string_view.h"
#include "proto/model.pb.h"

namespace weir {

// The version of all programs of Weir.
inline constexpr char kVersion[] = "0.1.0";

// The version of the wire protocol that a process speaks (v1.ProtocolVersion, docs/protocol.md), and whether
// the versions of two processes fit together.

// This program's version.
v1::ProtocolVersion OwnProtocol();

// FailedPrecondition: the major version of `theirs`, which the peer of this name speaks, differs from that of
// `own`; names both, and says which process must be upgraded. `me`: this process, as messages name it.
absl::Status CheckProtocol(absl::string_view peer, const v1::ProtocolVersion& theirs, absl::string_view me,
                           const v1::ProtocolVersion& own = OwnProtocol());

// Returns whether a process of this version sends its instance in each call (v1.Caller).
bool SaysInstance(const v1::ProtocolVersion& version);
// Returns whether a process of this version does no work beyond HeartbeatReply.work_end.
bool WaitsAtWorkEnd(const v1::ProtocolVersion& version);

// "1.1", and back. Text that is no version counts as 1.0, the version that sent none.
std::string ToString(const v1::ProtocolVersion& version);
v1::ProtocolVersion ParseProtocol(absl::string_view text);

}  // namespace weir
