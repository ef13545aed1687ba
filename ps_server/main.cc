#include "ps_server/program.h"

int main(int argc, char** argv) { return weir::RunPsServer(argc, argv); }
