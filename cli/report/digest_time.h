#pragma once

#include "absl/time/time.h"
#include "proto/coordinator.pb.h"

namespace weir {

// How long the servers may take, when all members of a job are gone, for the hash of its rows
// (tables_sha256): each hashes its own, on one thread. Generous. Zero: the job has no embedding tables.
absl::Duration TimeForDigests(const v1::ClusterStatus& status);

}  // namespace weir
