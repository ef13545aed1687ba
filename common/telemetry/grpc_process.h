#pragma once

namespace weir {

// What holds for gRPC in all of a process. Once, at the start of main, before gRPC is used.
//
// What the library itself logs (warnings and errors) goes through our log, so that --log_format=json holds
// for it too. Its mutexes do not look for deadlocks: as it is packaged, libabsl notes the order of all that
// are taken, which is a twentieth of the CPU time of a small exchange.
void PrepareGrpc();

}  // namespace weir
