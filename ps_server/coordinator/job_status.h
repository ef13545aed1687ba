#pragma once

#include <string>
#include <vector>

#include "proto/coordinator.pb.h"
#include "ps_server/coordinator/job_parts.h"

namespace weir {

// Both are for people: no decision depends on them. Call them in the coordinator's queue.

v1::ClusterStatus StatusOf(const JobParts& job);
// The things that the job waits for. Empty: it waits for none.
std::vector<std::string> WaitingFor(const JobParts& job);

}  // namespace weir
