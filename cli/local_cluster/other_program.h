#pragma once

#include <string>
#include <vector>

namespace weir {

// Becomes another program of Weir (FindProgram of installation.h): `weir bench ARGS` weir_bench, `weir replay
// DIR` ps_server. Returns an exit code only where that cannot be. If `args` ask for help that the program is
// not there to give, prints `help`.
int BecomeProgram(const std::string& package, const std::string& name, const std::vector<std::string>& args,
                  const std::string& help);

}  // namespace weir
