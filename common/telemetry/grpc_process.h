#pragma once

namespace weir {

// Sets up gRPC for the whole process. Called once, at the start of main, before gRPC is used.
//
// What the library itself logs (warnings and errors) goes through our log, so that --log_format=json holds
// for it, too; the same warning at most once a minute. Its mutexes do not look for deadlocks: the packaged
// libabsl records the order of all that are taken, which is a twentieth of the CPU time of a small exchange.
void PrepareGrpc();

}  // namespace weir
