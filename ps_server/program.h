#pragma once

namespace weir {

// The program ps_server: one server of a job, until the job ends. Returns the process's exit code
// (docs/exit_codes.md). Called once, by main().
int RunPsServer(int argc, char** argv);

}  // namespace weir
