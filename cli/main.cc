#include "cli/program.h"
#include "common/program/exit_codes.h"

int main(int argc, char** argv) {
  weir::EndOnExhaustion();
  return weir::RunWeir(argc, argv);
}
