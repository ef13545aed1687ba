#pragma once

#include <string>
#include <vector>

namespace weir {

// Becomes another program of Weir (FindProgram of installation.h): `weir bench ARGS` weir_bench, `weir replay
// DIR` ps_server. Returns an exit code only where that cannot be.
int BecomeProgram(const std::string& package, const std::string& name, const std::vector<std::string>& args);

}  // namespace weir
