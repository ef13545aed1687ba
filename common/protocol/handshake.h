#pragma once

#include <cstdint>
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

// Returns whether a server of this version knows PushRequest.weight.
bool WeighsPushes(const v1::ProtocolVersion& version);
// Returns whether a worker of this version knows Member.share.
bool SharesParts(const v1::ProtocolVersion& version);
// Returns whether a server of this version knows Dtype INT8, INT4 and BIT1.
bool TakesQuantisedPushes(const v1::ProtocolVersion& version);

// "1.1", and back. Text that is no version counts as 1.0, the version that sent none.
std::string ToString(const v1::ProtocolVersion& version);
v1::ProtocolVersion ParseProtocol(absl::string_view text);

// The job that a process belongs to (v1::JobIdentity). Two jobs may have the same name, config, model, ranks
// and clocks; their identities differ.

// "job 'digits' (00c0ffee00c0ffee)"; of an unset identity, "no job yet".
std::string Describe(const v1::JobIdentity& job);
// Describes a job of which only the id is known: "a job with the id 00c0ffee00c0ffee".
std::string DescribeJob(uint64_t id);

// Whether two processes may be of one job. An unset identity, or one without an id, comes from a process that
// speaks a protocol version before 1.9, and fits each.
bool MayBeSame(uint64_t a, uint64_t b);

// NotFound: a call for the job `job`, and for the shard `shard_plus_one - 1`, has reached the server
// ps:`index` of `own`. 0, for both: the caller does not say. The message names what was called and what was
// meant.
absl::Status CheckAddressee(const v1::JobIdentity& own, uint32_t index, uint64_t job,
                            uint32_t shard_plus_one);

}  // namespace weir
