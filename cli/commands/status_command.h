#pragma once

#include "cli/commands/coordinator_address.h"

namespace weir {

// `weir status`: asks the coordinator of a running cluster.
struct StatusOptions {
  ClusterFlags cluster;
  bool json = false;
  // Shows what waits for what (cli/report/wait_chain.h).
  bool why = false;
};

// Returns the exit code: 0; 64, 78: there is no address, or no good one; 138: nothing answers.
int RunStatus(const StatusOptions& options);

}  // namespace weir
