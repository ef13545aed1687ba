#include "python/capi/programs.h"

#include <cstdio>

#include "absl/strings/string_view.h"
#include "cli/program.h"
#include "common/program/exit_codes.h"
#include "ps_server/program.h"

int weir_run_program(const char* name, int argc, char** argv) {
  weir::EndOnExhaustion();
  const absl::string_view program = name;
  if (program == "ps_server") return weir::RunPsServer(argc, argv);
  if (program == "weir") return weir::RunWeir(argc, argv);
  std::fprintf(stderr, "libweir.so has the programs ps_server and weir, not '%s'\n", name);
  return weir::kExitUsage;
}
