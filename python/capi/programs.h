#pragma once

#ifdef __cplusplus
extern "C" {
#endif

// Runs a program that libweir.so has within it, "ps_server" or "weir", so that a wheel need not bring the
// same code several times. Returns the exit code.
// Requires: called once, by the main() of a process for it.
int weir_run_program(const char* name, int argc, char** argv);

#ifdef __cplusplus
}
#endif
