#include "cli/program.h"

int main(int argc, char** argv) { return weir::RunWeir(argc, argv); }
