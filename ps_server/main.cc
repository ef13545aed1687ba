#include "common/program/exit_codes.h"
#include "ps_server/program.h"

int main(int argc, char** argv) {
  weir::EndOnExhaustion();
  return weir::RunPsServer(argc, argv);
}
