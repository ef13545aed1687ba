#pragma once

#include <string>

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

}  // namespace weir
