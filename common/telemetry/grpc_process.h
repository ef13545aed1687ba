#pragma once

#include "absl/status/status.h"

namespace weir {

// Sets up gRPC and Protocol Buffers for the whole process. Called once, at the start of main, before they are
// used.
//
// The warnings and errors of these libraries go through our log, so that --log_format=json holds for them,
// too. A warning that repeats is logged at most once a minute. gRPC's mutexes do not look for deadlocks: the
// packaged libabsl records the order of all that are taken, which is a twentieth of the CPU time of a small
// exchange.
void PrepareGrpc();

// Checks that the system gives this process the threads that gRPC makes for itself, and those of one server
// or client. If gRPC gets no thread, it hangs without a word. Called before gRPC is used.
// Errors: those of CheckRoomForThreads().
absl::Status CheckRoomForGrpc();

}  // namespace weir
