#pragma once

#include "absl/status/status.h"

namespace weir {

// What a process of Weir exits with. Codes up to 127 are permanent for an orchestrator (Kubeflow's ExitCode
// policy), above they ask for a retry.
enum ExitCode {
  kExitOk = 0,
  kExitUsage = 64,      // bad command line
  kExitInternal = 70,   // a fault of the program, or training that cannot go on (non-finite gradients)
  kExitStorage = 74,    // what the job is to leave could not be written, a full disk say: make room first
  kExitConfig = 78,     // bad config, cluster spec, data or address: trying again will not help
  kExitPeerLost = 138,  // a peer was lost: try again
  kExitDrained = 143,   // ended by SIGTERM
};

// What a task exits with that a failure of the job, or of its own, has ended. A worker that was fenced, or
// whose job was drained, may find its place in the job again: kExitPeerLost.
ExitCode ExitCodeOf(const absl::Status& status);

}  // namespace weir
