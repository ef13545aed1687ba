#pragma once

#include <string>

#include "absl/status/status.h"
#include "absl/strings/string_view.h"
#include "proto/model.pb.h"

// Which version of the wire a process speaks (v1.ProtocolVersion, docs/protocol.md), and whether two
// processes that say theirs to each other fit together.
namespace weir {

// This program's.
v1::ProtocolVersion OwnProtocol();

// FailedPrecondition: `theirs`, of the peer of this name, is another major version than `own`; names both,
// and says which of the two is to be upgraded. `me`: this process, as messages name it.
absl::Status CheckProtocol(absl::string_view peer, const v1::ProtocolVersion& theirs, absl::string_view me,
                           const v1::ProtocolVersion& own = OwnProtocol());

// Whether a process of this version says its instance in each call (v1.Caller).
bool SaysInstance(const v1::ProtocolVersion& version);
// And whether it does no work beyond HeartbeatReply.work_end.
bool WaitsAtWorkEnd(const v1::ProtocolVersion& version);

// "1.1", and back; what is no version counts as 1.0, which said none.
std::string ToString(const v1::ProtocolVersion& version);
v1::ProtocolVersion ParseProtocol(absl::string_view text);

}  // namespace weir
