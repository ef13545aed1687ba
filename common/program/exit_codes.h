#pragma once

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

}  // namespace weir
