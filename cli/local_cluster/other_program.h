#pragma once

#include <string>
#include <vector>

namespace weir {

// Becomes another program of Weir (FindProgram of installation.h): weir_bench for `weir bench ARGS`,
// ps_server for `weir replay DIR`. Returns an exit code only if that is not possible. If `args` ask for help
// and the program is not there to give it, prints `help`.
int BecomeProgram(const std::string& package, const std::string& name, const std::vector<std::string>& args,
                  const std::string& help);

}  // namespace weir
