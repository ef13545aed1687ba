#pragma once

namespace weir {

// The program weir. Returns the process's exit code (docs/exit_codes.md). Called once, by main().
int RunWeir(int argc, char** argv);

}  // namespace weir
