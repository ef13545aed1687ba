#pragma once

#include "absl/status/status.h"

namespace weir {

// The exit codes of Weir's processes. An orchestrator (Kubeflow's ExitCode policy) takes codes up to 127 as
// permanent, and higher ones as a request to try again. proto/failure.proto has the kinds of failure behind
// them, and cli/local_cluster/first_cause.cc the words that people read.
enum ExitCode {
  kExitOk = 0,
  kExitUsage = 64,      // bad command line
  kExitInternal = 70,   // a fault of the program, or training that cannot continue (non-finite gradients)
  kExitStorage = 74,    // the job's results could not be written, a full disk say: make room first
  kExitConfig = 78,     // bad config, cluster spec, data or address: trying again will not help
  kExitPeerLost = 138,  // a peer was lost: try again
  kExitDrained = 143,   // ended by SIGTERM
};

// The exit code of a task that a failure of the job, or of the task itself, has ended. A worker that was
// fenced, or whose job was drained, may find its place in the job again: kExitPeerLost.
ExitCode ExitCodeOf(const absl::Status& status);

// From now on the program exits with kExitInternal, and says why, if one of its threads finds no memory, or
// if a library gets no thread. Without this call, an exception that nobody catches would abort it. Other such
// exceptions are faults of the program, and still abort. Called first in main; not in a library, which must
// not end the program of its user.
void EndOnExhaustion();

}  // namespace weir
