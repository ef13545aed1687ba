// A program that libweir.so has within it: PROGRAM, a string, is its name.
#include "python/capi/weir_c.h"

int main(int argc, char** argv) { return weir_run_program(PROGRAM, argc, argv); }
