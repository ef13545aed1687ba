#pragma once

#include <string>
#include <vector>

#include "absl/time/time.h"
#include "proto/coordinator.pb.h"

// A running cluster in words. Pure functions.
namespace weir {

// "bounded(3)", "sync", "async".
std::string ModeName(const std::string& mode, uint32_t staleness_bound);

// One line: what the cluster does now. The pieces are in the order of their importance, so that a narrow
// terminal cuts off the least important.
std::string StatusLine(const v1::ClusterStatus& status);

// Everything, for `weir status`: a few lines and a table of the tasks. Ends with a line feed.
std::string StatusReport(const v1::ClusterStatus& status);

// Returns the tasks of a running job of which ps:0 has heard nothing for kSilentSeconds: they stand still, or
// are cut off, and their last reports are old. Servers come first. The pointers point into `status`.
std::vector<const v1::TaskStatus*> SilentTasks(const v1::ClusterStatus& status);

// Describes why a cluster stands still, for `weir status --why`: the waits on each server, and the chain that
// begins with the longest wait and leads from waiting task to awaited task. Ends with a line feed. Pure.
std::string WaitChain(const v1::ClusterStatus& status);

// Returns a generous limit on the time that servers need to hash their rows (tables_sha256) when all members
// of a job are gone. Each server hashes its own rows, on one thread. Zero: the job has no embedding tables.
absl::Duration TimeForDigests(const v1::ClusterStatus& status);

}  // namespace weir
